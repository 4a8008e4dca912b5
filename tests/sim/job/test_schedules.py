"""A slice of what `make sim` runs: random schedules of the real core and turn, audited after every transaction."""

import pytest
from testkit.sim.campaign import run_in_memory
from testkit.sim.schedule import FAULT_KINDS, schedule

from headrace.core.async_policy import PRESETS

N = 400
FOUND = (6, 295, 405, 1005, 1025, 1067, 1093, 1179, 1633, 2931, 2997, 4128, 8503, 19943)
"""Schedules that once showed a definition wrong (docs/adr/0020-what-the-simulation-mended.md)."""


@pytest.mark.parametrize("first", range(0, N, 50))
def test_schedules_end_with_every_invariant_kept(first: int) -> None:
    for number in range(first, first + 50):
        outcome = run_in_memory(number)
        assert not outcome.failure, outcome.failure


@pytest.mark.parametrize("number", FOUND)
def test_what_was_found_once_stays_mended(number: int) -> None:
    outcome = run_in_memory(number)
    assert not outcome.failure, outcome.failure


def test_a_schedule_is_reproduced_by_its_number() -> None:
    assert run_in_memory(7) == run_in_memory(7)
    assert run_in_memory(7) != run_in_memory(8)


def test_the_slice_covers_every_preset_and_every_kind_of_fault() -> None:
    drawn = [schedule(number) for number in range(N)]
    assert {one.preset for one in drawn} == PRESETS.keys()
    assert {fault.kind for one in drawn for fault in one.faults} >= set(FAULT_KINDS)
    assert {one.plan.policy.alpha for one in drawn} >= {0, 1, 2, 3, None}
    assert {one.plan.policy.on_stale for one in drawn} == {"evict", "wait"}
    assert all(one.plan.groups <= 4 and one.plan.group_size <= 4 and one.plan.max_steps <= 4 for one in drawn)
