"""Short generations under the current version, which the trainer scores to compare engine and trainer.

A batch made under the version before holds too few tokens of n to compare, so eight short requests are generated under
n as soon as the workers serve it, while the buffer fills.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from headrace.core.seeds import derive
from headrace.service.logging import get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.inference.v1 import inference_pb2 as pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

log = get_logger(__name__)

N_REQUESTS = 8
PROMPT_TOKENS = 8
NEW_TOKENS = 32
ENOUGH_TOKENS = N_REQUESTS * NEW_TOKENS
DEADLINE_S = 10.0
PATIENCE_S = 2.0
"""How long a step waits for its probe; without one its gap is measured over what the batch holds of version n."""


@dataclass(slots=True)
class _Sample:
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    worker_id: str = ""


class Prober:
    """One probe at a time; `samples(n)` waits for the one of version n, if it was started."""

    def __init__(self, job_id: str, seed: int) -> None:
        self._job_id = job_id
        self._seed = seed
        self._task: asyncio.Task[list[trn_pb.ProbeSample]] | None = None
        self._version: int | None = None

    def start(self, generate: Callable[..., Any], policy_version: int, vocab_size: int) -> None:
        """Generates in the background; the one of an older version is given up."""
        if self._version == policy_version or vocab_size <= 0:
            return
        self.cancel()
        self._version = policy_version
        self._task = asyncio.create_task(self._run(generate, policy_version, vocab_size), name="probe")

    async def samples(self, policy_version: int) -> list[trn_pb.ProbeSample]:
        """Empty where there is no probe of this version, or it failed: the step goes on without."""
        if self._task is None or self._version != policy_version:
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.shield(self._task)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            log.warning("probe_failed", policy_version=policy_version, reason=str(error) or "deadline")
            return []

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._version = None

    async def _run(
        self, generate: Callable[..., Any], policy_version: int, vocab_size: int
    ) -> list[trn_pb.ProbeSample]:
        samples = {
            f"probe/{self._job_id}/{policy_version}/{i}": _Sample(self._prompt(policy_version, i, vocab_size))
            for i in range(N_REQUESTS)
        }
        starts = [self._start(name, sample, policy_version) for name, sample in samples.items()]
        done = asyncio.Event()

        async def frames() -> AsyncIterator[pb.GenerateFrame]:
            yield pb.GenerateFrame(commands=starts)
            await done.wait()  # the stream stays open until every request has ended

        async with asyncio.timeout(DEADLINE_S):
            call = generate(frames())
            try:
                await self._collect(call, samples)
            finally:
                done.set()
                call.cancel()
        return [
            trn_pb.ProbeSample(
                token_ids=sample.prompt + sample.ids,
                n_prompt=len(sample.prompt),
                logprobs=sample.logprobs,
                worker_id=sample.worker_id,
            )
            for sample in samples.values()
            if sample.ids
        ]

    async def _collect(self, call: Any, samples: dict[str, _Sample]) -> None:
        open_names = set(samples)
        async for frame in call:
            for chunk in frame.chunks:
                sample = samples[chunk.request_id]
                sample.ids += chunk.token_ids
                sample.logprobs += chunk.logprobs
                sample.worker_id = chunk.worker_id
                if chunk.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED:
                    open_names.discard(chunk.request_id)
            if not open_names:
                return

    def _prompt(self, policy_version: int, index: int, vocab_size: int) -> list[int]:
        return [derive("probe", self._seed, policy_version, index, i) % vocab_size for i in range(PROMPT_TOKENS)]

    def _start(self, name: str, sample: _Sample, policy_version: int) -> pb.GenerateCommand:
        """Of no trajectory: where those are bound to a worker, one that nobody ends would keep it from draining."""
        return pb.GenerateCommand(
            start=pb.StartGeneration(
                request_id=name,
                assignment_epoch=1,
                job_id=self._job_id,
                purpose=common_pb2.PURPOSE_EVAL,
                prompt_token_ids=sample.prompt,
                sampling=common_pb2.SamplingSpec(
                    temperature=1.0, top_p=1.0, seed=derive(name), max_new_tokens=NEW_TOKENS
                ),
                pinned_version=policy_version,
            )
        )
