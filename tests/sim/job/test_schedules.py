"""Random schedules of the whole job machine on virtual time; the invariants are checked after every event."""

import random
from collections import Counter

import pytest
from testkit.world import Chances, World

from headrace.core.async_policy import PRESETS
from headrace.core.job.plan import EvalPlan, JobPlan, Limits, TaskPlan
from headrace.core.job.state import Phase

PRESET_NAMES = ("sync", "sync_plus", "one_off", "stream", "partial", "bounded", "independent")
CALM = Chances()
ROUGH = Chances(
    env_failure=0.05,
    infra_failure=0.05,
    unscorable=0.03,
    reward_lost=0.05,
    kill_env=0.02,
    kill_worker=0.02,
    kill_trainer=0.02,
    kill_runner=0.03,
    pause=0.01,
    tail=0.1,
)


def plan(preset: str, rng: random.Random) -> JobPlan:
    return JobPlan(
        job_id="job_sim",
        seed=rng.randrange(1 << 30),
        max_steps=rng.randint(1, 4),
        groups=rng.randint(2, 4),
        group_size=rng.randint(2, 4),
        tasks=(
            TaskPlan("lake", weight=1.0),
            TaskPlan(
                "tools",
                weight=rng.choice([1.0, 2.0]),
                reward_names=("grade",),
                reward_weights=(1.0,),
                has_env_reward=False,
                reward_timeout_s=5.0,
            ),
        ),
        policy=PRESETS[preset],
        redundancy=rng.choice(["1", "1.25", "1.5"]),
        on_short=rng.choice(["drop", "shrink"]),
        updates_per_step=rng.choice([1, 2, 3]),
        checkpoint_every=rng.choice([0, 1, 2]),
        evaluation=EvalPlan(episodes=rng.choice([0, 2]), deadline_s=60.0),
        limits=Limits(step_s=2000.0, quota_patience_s=10.0, stale_deadline_s=20.0, prefetch_s=10.0, update_s=10.0),
    )


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("chances", [CALM, ROUGH], ids=["calm", "rough"])
def test_every_schedule_ends_balanced_and_within_alpha(preset: str, chances: Chances) -> None:
    for seed in range(40):
        rng = random.Random(f"{preset}/{seed}")
        job = plan(preset, rng)
        world = World(job, seed, chances).run()
        state = world.machine.state
        assert state.phase is Phase.SUCCEEDED, (seed, state.reason)
        assert state.step == job.max_steps
        assert not any(attempt.is_in_flight for attempt in state.attempts.values())
        closed = Counter(attempt.state.value for attempt in world.store.attempts.values() if attempt.purpose == "train")
        issued = sum(n for (purpose, _), n in state.ledger.issued.items() if purpose == "train")
        assert sum(closed.values()) == issued
        assert len({key for key, _ in world.trained}) == len(world.trained)
        alpha = job.policy.alpha
        assert alpha is None or state.counters["max_trained_lag"] <= alpha
        if chances is CALM:
            assert closed["trained"] == job.max_steps * job.groups * job.group_size


def test_a_schedule_is_reproduced_by_its_number() -> None:
    def trace() -> list[tuple[object, ...]]:
        world = World(plan("bounded", random.Random(7)), 7, ROUGH).run()
        return [(a.key, a.state, a.closed_at) for a in world.store.attempts.values()]

    assert trace() == trace()
