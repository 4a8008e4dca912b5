"""A draw is a function of (seed, position): order, batching and migration do not change it."""

from __future__ import annotations

from testkit.engines import Collector, Harness, prompt_of, request_of

N_NEW = 12


async def alone(harness: Harness, collector: Collector, request_id: str, prompt: list[int], seed: int) -> list[int]:
    """The answer when nothing else runs."""
    harness.engine.add(request_of(request_id, prompt, seed=seed, max_new_tokens=N_NEW))
    return (await collector.finished(request_id)).ids


async def test_order_and_batch_do_not_change_the_draws(loaded: Harness, collector: Collector) -> None:
    work = {f"r{n}": (prompt_of(10 + 7 * n, salt=n), 100 + n) for n in range(6)}
    expected = {key: await alone(loaded, collector, f"alone-{key}", *item) for key, item in work.items()}
    for name, keys in (("forward", list(work)), ("backward", list(reversed(work)))):
        for key in keys:
            prompt, seed = work[key]
            loaded.engine.add(request_of(f"{name}-{key}", prompt, seed=seed, max_new_tokens=N_NEW))
        for key in keys:
            assert (await collector.finished(f"{name}-{key}")).ids == expected[key]


async def test_a_migrated_request_draws_the_same_tokens(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(25, salt=11)
    whole = await alone(loaded, collector, "whole", prompt, seed=5)
    other = loaded.twin()
    await other.start()
    try:
        await other.load(1, "digest-1", loaded.tensors(1))
        moved = Collector(other)
        for kept in (1, 5, N_NEW - 1):
            prefix = prompt + whole[:kept]
            other.add(request_of(f"moved{kept}", prefix, kept=kept, seed=5, max_new_tokens=N_NEW))
            received = await moved.finished(f"moved{kept}")
            assert received.first_offset == kept
            assert whole[:kept] + received.ids == whole
    finally:
        await other.stop()


async def test_siblings_differ_and_a_second_run_repeats_them(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(30, salt=12)
    runs = []
    for run in range(2):
        for sibling in range(4):
            request = request_of(f"run{run}-{sibling}", prompt, seed=7000 + sibling, max_new_tokens=N_NEW)
            loaded.engine.add(request)
        runs.append([(await collector.finished(f"run{run}-{sibling}")).ids for sibling in range(4)])
    assert runs[0] == runs[1]
    assert len({tuple(ids) for ids in runs[0]}) == 4


async def test_the_largest_seed_works(loaded: Harness, collector: Collector) -> None:
    ids = await alone(loaded, collector, "big", prompt_of(8), seed=2**64 - 1)
    assert len(ids) == N_NEW
