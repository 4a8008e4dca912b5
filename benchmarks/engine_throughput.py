"""Generated tokens per second of one hf engine on one core, over the demo's mix of short turns.

    OMP_NUM_THREADS=1 python benchmarks/engine_throughput.py --lanes 8 16 32 64 96

Each lane is a trajectory: a prompt of 40 to 70 tokens, turns of 2, 6 or 10 tokens, 4 observed tokens between turns,
a new prompt past 120 tokens. Prefix sharing is on. The model is the demo's shape with random weights, or that of
``--model DIRECTORY`` with its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from inference_svc.engine.engine import EngineRequest, SamplingSpec
from inference_svc.engine.hf import HfEngine
from inference_svc.engine.hf_batching import BatchingSettings
from inference_svc.engine.hf_model import build_model, read_directory

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 48,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}


class Lane:
    """One trajectory after another on one lane."""

    def __init__(self, number: int, vocab_size: int) -> None:
        self._rng = random.Random(number)
        self._number = number
        self._vocab_size = vocab_size
        self._turn = 0
        self._tokens = self._some(self._rng.randint(40, 70))

    def _some(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]

    def next_request(self) -> EngineRequest:
        """The lane's next turn."""
        if len(self._tokens) > 120:
            self._tokens = self._some(self._rng.randint(40, 70))
        self._turn += 1
        spec = SamplingSpec(max_new_tokens=self._rng.choice([2, 2, 2, 6, 10]), seed=self._turn)
        return EngineRequest(f"{self._number}-{self._turn}", tuple(self._tokens), spec)

    def take(self, ids: tuple[int, ...], is_last: bool) -> None:
        """Append what was generated and, after a turn, an observation."""
        self._tokens.extend(ids)
        if is_last:
            self._tokens.extend(self._some(4))


async def measure(config: dict[str, Any], tensors: dict[str, Any], n_lanes: int, seconds: float) -> dict[str, float]:
    """Run for ``seconds`` after a warm-up of 0.5 s."""
    engine = HfEngine(build_model(config), BatchingSettings(max_running=n_lanes))
    await engine.start()
    await engine.load(0, "benchmark", tensors)
    lanes = [Lane(number, engine.limits.vocab_size) for number in range(n_lanes)]
    for lane in lanes:
        engine.add(lane.next_request())
    started_at = time.perf_counter() + 0.5
    before = None
    async for chunks in engine.outputs():
        for chunk in chunks:
            lane = lanes[int(chunk.request_id.split("-")[0])]
            lane.take(chunk.ids, chunk.finish_reason is not None)
            if chunk.finish_reason is not None:
                engine.add(lane.next_request())
        now = time.perf_counter()
        if before is None and now >= started_at:
            before, started_at = engine.stats(), now
        if before is not None and now >= started_at + seconds:
            break
    after, elapsed_s = engine.stats(), time.perf_counter() - started_at
    await engine.stop()
    assert before is not None
    steps = after.steps - before.steps
    return {
        "lanes": n_lanes,
        "generated_tokens_per_s": round((after.generated_tokens - before.generated_tokens) / elapsed_s),
        "prefill_tokens_per_s": round((after.prefill_tokens - before.prefill_tokens) / elapsed_s),
        "step_ms": round(1000 * (after.busy_s - before.busy_s) / steps, 2),
        "busy_share": round((after.busy_s - before.busy_s) / elapsed_s, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lanes", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--model", type=Path, help="a Hugging Face model directory")
    arguments = parser.parse_args()
    if arguments.model:
        config, tensors = read_directory(arguments.model)
    else:
        config, tensors = CONFIG, build_model(CONFIG).state_dict()
    for n_lanes in arguments.lanes:
        print(json.dumps(asyncio.run(measure(config, tensors, n_lanes, arguments.seconds))))


if __name__ == "__main__":
    main()
