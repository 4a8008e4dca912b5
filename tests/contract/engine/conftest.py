"""Every test of this folder runs on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from testkit.engines import Collector, Harness, HfHarness, ScriptedHarness

HARNESSES = {"hf": HfHarness, "scripted": ScriptedHarness}


@pytest.fixture(params=sorted(HARNESSES))
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A started engine that holds no weights yet."""
    made: Harness = HARNESSES[request.param]()
    await made.engine.start()
    yield made
    await made.engine.stop()


@pytest.fixture
async def loaded(harness: Harness) -> Harness:
    """The same with version 1 loaded."""
    await harness.engine.load(1, "digest-1", harness.tensors(1))
    return harness


@pytest.fixture
async def collector(harness: Harness) -> Collector:
    """The reader of the engine's outputs."""
    return Collector(harness.engine)
