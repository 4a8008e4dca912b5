"""Probe samples of an engine as rows."""

from collections.abc import Sequence

from headrace.wire.trainer.v1 import trainer_pb2
from trainer_svc.batch import Row
from trainer_svc.errors import BatchUnusable


def probe_rows(samples: Sequence[trainer_pb2.ProbeSample]) -> list[Row]:
    """Rows whose mask is on the generated tokens. Raises BatchUnusable when a sample's counts disagree."""
    rows: list[Row] = []
    for sample in samples:
        n_generated = len(sample.token_ids) - sample.n_prompt
        if n_generated != len(sample.logprobs) or sample.n_prompt < 1:
            raise BatchUnusable(
                f"probe of {sample.worker_id}: {len(sample.token_ids)} ids after {sample.n_prompt} prompt ids, "
                f"{len(sample.logprobs)} logprobs"
            )
        rows.append(
            Row(
                ids=list(sample.token_ids),
                mask=[0] * sample.n_prompt + [1] * n_generated,
                behaviour=[0.0] * sample.n_prompt + list(sample.logprobs),
                advantage=0.0,
                task="",
            )
        )
    return rows
