"""A machine rebuilt from its rows goes on as the one before would have."""

import json
import random

import pytest
from testkit.jobs import TOOLS, Job, at_step, make_plan, make_policy, of, running
from testkit.world import Chances, World

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.plan import TaskPlan
from headrace.core.job.snapshot import dump
from headrace.core.job.state import JobState, Phase


def picture(state: JobState) -> dict[str, object]:
    """What the rest of the job depends on."""
    return {
        "phase": state.phase,
        "reason": state.reason,
        "dump": json.loads(json.dumps(dump(state))),
        "lineage": (state.lineage.current, state.lineage.versions),
        "ledger": (state.ledger.issued, state.ledger.closed, +state.ledger.tokens, state.ledger.discarded_tokens),
        "groups": {
            g.id: (g.state, g.task, g.env_seed, g.requeues, g.cohort, g.ready_order, g.step, sorted(g.members))
            for g in state.groups.values()
        },
        "attempts": {
            a.key: (a.state, a.kind, a.mode, a.start_version, a.reward, a.env_worker_id, a.reason)
            for a in state.attempts.values()
        },
        "unassigned": set(state.unassigned),
        "steps": {s.step: (s.state, s.batch_digest, s.publish_version, s.groups) for s in state.steps.values()},
    }


def prepared(name: str) -> Job:
    """Jobs in the middle of something."""
    if name == "fresh":
        return Job(make_plan())
    if name == "batch out":
        job = running()
        job.finish_all()
    elif name == "scoring":
        job = running(tasks=(TOOLS,))
        for attempt in job.generating[:3]:
            job.finish(attempt)
    elif name == "evaluation":
        job = running(evaluation={"episodes": 2})
        job.finish(next(a for a in job.generating if a.purpose == "eval"), 0.5)
        job.fail(next(a for a in job.generating if a.purpose == "eval"))
    elif name == "replay":
        job = at_step(4, groups=1, max_steps=9, policy=make_policy(alpha=0), checkpoints=(2,))
        job.lose_trainer(restored_at=2)
        job.publish()
        job.commit()
    elif name == "paused":
        job = running()
        job.tell(did.PauseRequested())
    elif name == "requeued":
        job = running(limits={"pause_ttl_s": 1.0})
        job.tell(did.PauseRequested())
        job.wait(2.0)
    elif name == "slots":
        job = running(slots=3)
    else:
        assert name == "ended"
        job = running()
        job.tell(did.CancelRequested("enough"))
    return job


NAMES = ["batch out", "scoring", "evaluation", "replay", "paused", "requeued", "slots", "ended"]


@pytest.mark.parametrize("name", NAMES)
def test_the_rebuilt_machine_is_the_same(name: str) -> None:
    job = prepared(name)
    before = picture(job.state)
    job.restart_runner()
    assert picture(job.state) == before


@pytest.mark.parametrize("name", NAMES)
def test_twice_is_as_once(name: str) -> None:
    job = prepared(name)
    job.restart_runner()
    job.tell()
    once = picture(job.state)
    job.restart_runner()
    assert picture(job.state) == once


def test_connections_are_not_restored() -> None:
    job = running()
    job.restart_runner()
    state = job.state
    assert (state.trainer_id, state.has_proxy, state.workers, state.envs) == ("", False, {}, {})
    assert (state.publishing, state.training) == (None, None)


def test_nothing_is_admitted_or_taken_before_they_report() -> None:
    job = running(groups=1, max_steps=9)
    job.finish_group(job.groups[0])
    job.commit()
    n_groups = len(job.all_groups)
    job.restart_runner()
    job.wait(1.0)
    assert len(job.all_groups) == n_groups
    assert job.state.training is None


def test_the_seeds_go_on_where_they_were() -> None:
    def seeds(is_restarted: bool) -> list[int]:
        job = running(groups=2, max_steps=9, policy=make_policy(alpha=0))
        for _ in range(3):
            job.finish_all()
            job.commit()
            if is_restarted:
                job.restart_runner()
                job.reconnect()
            job.load()
        return list(dict.fromkeys(a.env_seed for a in of(job.log, do.AssignAttempt)))

    assert seeds(is_restarted=True) == seeds(is_restarted=False)


def test_version_0_is_asked_for_again_when_it_was_on_its_way() -> None:
    job = Job(make_plan())
    job.connect()
    job.restart_runner()
    job.connect()
    assert [a.policy_version for a in of(job.log, do.PublishState)] == [0, 0]
    job.publish()
    assert job.state.phase is Phase.RUNNING


def test_a_batch_that_is_out_is_sent_again_with_the_same_digest() -> None:
    job = prepared("batch out")
    first = job.train_step
    job.restart_runner()
    job.reconnect()
    again = job.train_step
    assert again is not first
    assert again == first


def test_a_replay_goes_on() -> None:
    job = prepared("replay")
    assert job.train_step.step == 4
    job.restart_runner()
    job.reconnect()
    assert job.train_step.step == 4
    job.commit()
    assert job.state.step == 4
    assert not job.state.is_batch_out


def test_work_in_hand_is_kept() -> None:
    job = running()
    started = job.generating[:2]
    job.start(*started)
    job.restart_runner()
    actions = job.reconnect()
    assert not of(actions, do.AssignAttempt)
    assert not of(actions, do.AbortAttempt)


def test_the_stored_state_is_plain_json() -> None:
    for name in NAMES:
        text = json.dumps(dump(prepared(name).state))
        assert json.loads(text) == json.loads(json.dumps(json.loads(text)))


class TestAnyPrefix:
    """A schedule whose runner is killed after n events ends as one that was never killed: balanced, within alpha."""

    CHANCES = Chances(env_failure=0.1, infra_failure=0.05, kill_env=0.02, kill_trainer=0.02, tail=0.1)

    def world(self, seed: int) -> World:
        tasks = (
            TaskPlan("lake"),
            TaskPlan("tools", 1.0, ("grade",), (1.0,), has_env_reward=False, reward_timeout_s=5.0),
        )
        plan = make_plan(
            groups=2, max_steps=3, tasks=tasks, redundancy="1.5", checkpoint_every=2, evaluation={"episodes": 1},
            limits={"step_s": 5000.0, "quota_patience_s": 10.0, "prefetch_s": 10.0, "update_s": 10.0},
        )  # fmt: skip
        return World(plan, seed, self.CHANCES)

    @pytest.mark.parametrize("seed", range(6))
    def test_it_ends_with_the_same_invariants(self, seed: int) -> None:
        n_events = self.world(seed).run().n_events
        cuts = random.Random(seed).sample(range(3, n_events), 5)
        for cut in sorted(cuts):
            world = self.world(seed)
            while world.n_events < cut and world.ended is None:
                world.step()
            if world.ended is None:
                world.kill_runner()
                world.run()
            state = world.machine.state
            assert state.phase is Phase.SUCCEEDED, (cut, state.reason)
            assert state.step == 3
            assert state.counters["max_trained_lag"] <= 1
            assert not any(a.is_in_flight for a in world.store.attempts.values())
            assert sum(state.ledger.issued.values()) == sum(state.ledger.closed.values())
            keys = [key for key, _ in world.trained]
            assert len(keys) == len(set(keys))
            trained = [a for a in world.store.attempts.values() if a.state == "trained"]
            assert len(trained) == 3 * 2 * 2
