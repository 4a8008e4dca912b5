"""What a runner relies on when it writes and reads its job, whoever keeps the rows."""

import copy
from typing import Any

import pytest
from testkit.jobs import LAKE, TOOLS, Job, at_step, make_policy, running
from testkit.turns import everything, manifest, turn_of

from control_plane.runner.lease import LeaseLost
from control_plane.runner.turn import MetricPoint
from headrace.core.job import events as did
from headrace.core.job.actions import Announce
from headrace.core.job.rows import SegmentRow
from headrace.core.job.snapshot import restore
from headrace.core.job.state import Changes, Phase
from headrace.core.versions import VersionState

NOTHING = Changes([], [], [], [], [])


async def opened(shelf: Any) -> Any:
    epoch = await shelf.acquire("runner-a")
    return shelf.repository(epoch)


def busy() -> Job:
    """A job in the middle of everything: trained, sampled, ready, scoring, running, queued, lost and dropped."""
    job = running(groups=2, group_size=2, max_steps=9, tasks=(LAKE, TOOLS), policy=make_policy(alpha=2))
    job.now = 1_700_000_000.25
    for task in ("lake", "tools"):
        group = next(g for g in job.groups if g.task == task)
        for member in list(group.live):
            job.finish(member, 0.5, reward_components={"goal": 0.5}, phases={"generate": 1.5}, discarded_tokens=2)
            if task == "tools":
                job.grade(member, 1.0, components={"digits": 1.0})
    job.commit()
    job.load()
    fresh = [g for g in job.groups if g.state == "open"]
    lake = next(g for g in fresh if g.task == "lake")
    tools = next(g for g in fresh if g.task == "tools")
    job.finish(job.members(lake)[0], 1.0, is_truncated=True, finish_reason="max_turns")
    job.fail(job.members(lake)[1], "env", "step_timeout")
    job.start(job.members(tools)[0])
    job.finish(job.members(tools)[1])
    return job


class TestRoundTrip:
    async def test_nothing_is_loaded_before_the_first_turn(self, shelf: Any) -> None:
        repository = await opened(shelf)
        assert await repository.load(busy().plan) is None

    async def test_what_is_committed_is_loaded_back_equal(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        assert (stored.phase, stored.reason) == (Phase.RUNNING, "")
        assert list(stored.versions) == list(job.state.lineage.versions.values())
        loaded = {a.key: a for group in stored.groups for a in group.members.values()}
        assert loaded.keys() == job.state.attempts.keys()
        for key, attempt in job.state.attempts.items():
            expected = copy.deepcopy(attempt)
            expected.reward_try, expected.reward_deadline, expected.segments = 0, None, ()
            assert loaded[key] == expected, key

    async def test_groups_come_back_in_the_order_of_admission_without_the_closed_ones(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        assert [g.id for g in stored.groups] == [g.id for g in job.groups]
        for loaded, group in zip(stored.groups, job.groups, strict=True):
            for name in (
                "state",
                "task",
                "env_seed",
                "admitted_version",
                "created_at",
                "requeues",
                "cohort",
                "ready_at",
            ):
                assert getattr(loaded, name) == getattr(group, name), name

    async def test_every_attempt_ever_issued_of_an_open_group_comes_back(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        assert {g.id: sorted(g.members) for g in stored.groups} == {g.id: sorted(g.members) for g in job.groups}
        assert any(a.state == "failed_env" for g in stored.groups for a in g.members.values())

    async def test_pending_rewards_are_those_without_a_score(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        scoring = [a for g in stored.groups for a in g.members.values() if a.state == "scoring"]
        assert [a.pending_rewards for a in scoring] == [{"grade"}]

    async def test_the_rebuilt_machine_balances_and_goes_on(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        machine = restore(await repository.load(job.plan))
        machine.check()
        assert machine.state.lineage.current == 1
        assert machine.state.ledger.issued == job.state.ledger.issued
        job.machine = machine
        job.reconnect()
        while job.state.training is None:
            job.finish_all()
        job.commit()
        assert job.state.step == 2

    async def test_a_second_turn_overwrites_rows_under_their_keys(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        attempt = next(a for a in job.generating if a.purpose == "train")
        job.start(attempt)
        await repository.commit(turn_of(job, Changes([attempt], [], [], [], [])))
        stored = await repository.load(job.plan)
        loaded = {a.key: a for g in stored.groups for a in g.members.values()}
        assert loaded[attempt.key].state == "running"
        assert len(loaded) == len(job.state.attempts)

    async def test_an_empty_turn_changes_no_rows(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        before = await repository.load(job.plan)
        await repository.commit(turn_of(job, NOTHING))
        assert await repository.load(job.plan) == before

    async def test_odd_text_is_made_safe(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        attempt = job.generating[0]
        job.fail(attempt, detail="a NUL \x00 and half a pair \ud800")
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        loaded = {a.key: a for g in stored.groups for a in g.members.values()}[attempt.key]
        for text in (loaded.reason, loaded.fault["detail"]):
            assert "\x00" not in text
            text.encode()


class TestSegments:
    async def test_runs_of_versions_are_kept_in_their_order(self, shelf: Any) -> None:
        repository, job = await opened(shelf), running(groups=3)
        attempt = job.generating[0]
        runs = tuple(SegmentRow(v, "inference-0@a", f"digest-{v}", n) for v, n in ((0, 5), (1, 2), (0, 1)))
        job.finish(attempt, segments=runs)
        await repository.commit(everything(job))
        name, number = attempt.key
        assert await shelf.segments() == [
            (name, number, 0, 0, "digest-0", 5),
            (name, number, 1, 1, "digest-1", 2),
            (name, number, 2, 0, "digest-0", 1),
        ]  # fmt: skip


class TestFencing:
    async def test_the_first_epoch_is_1_and_the_next_holder_gets_the_next(self, shelf: Any) -> None:
        assert await shelf.acquire("runner-a") == 1
        assert await shelf.acquire("runner-b") is None
        await shelf.lapse()
        assert await shelf.acquire("runner-b") == 2

    async def test_commits_under_an_old_epoch_write_nothing(self, shelf: Any) -> None:
        old, job = await opened(shelf), busy()
        await old.commit(everything(job))
        await shelf.lapse()
        new = shelf.repository(await shelf.acquire("runner-b"))
        before, events = await new.load(job.plan), len(await shelf.events())
        job.tell(did.CancelRequested())
        await shelf.wish("cancel")
        turn = everything(
            job, announced=[Announce("job.phase")], outbox=[{"items": []}], metrics=[MetricPoint("loss", 1, 0.5)],
            desired_done="cancel", result={"steps": 1}, progress={"step": 1},
        )  # fmt: skip
        with pytest.raises(LeaseLost):
            await old.commit(turn)
        assert await new.load(job.plan) == before
        assert len(await shelf.events()) == events
        assert await new.unsent() == []
        assert await shelf.metrics() == {}
        assert await new.desired() == "cancel"

    async def test_an_owner_that_lapsed_can_not_write_even_if_nobody_took_over(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await shelf.lapse()
        with pytest.raises(LeaseLost, match="epoch 1 has lapsed or passed on"):
            await repository.commit(everything(job))
        assert (await shelf.job())["runner_state"] == {}

    async def test_renewing_a_lapsed_lease_fails(self, shelf: Any) -> None:
        repository = await opened(shelf)
        await repository.renew()
        await shelf.lapse()
        with pytest.raises(LeaseLost):
            await repository.renew()

    async def test_a_commit_that_fails_half_way_leaves_nothing(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        before = await repository.load(job.plan)
        attempt = job.generating[0]
        job.start(attempt)
        turn = turn_of(job, Changes([attempt], [], [], [], []), announced=[Announce("odd", {"value": object()})])
        with pytest.raises(Exception, match=r"(?i)serializ|object"):
            await repository.commit(turn)
        assert await repository.load(job.plan) == before


class TestOutbox:
    PAYLOADS = ({"items": [{"n": 1}]}, {"items": [{"n": 2}]}, {"items": [{"n": 3}]})

    async def test_entries_get_ids_in_their_order(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        first = await repository.commit(everything(job, outbox=self.PAYLOADS))
        second = await repository.commit(turn_of(job, NOTHING, outbox=self.PAYLOADS[:1]))
        assert len(set(first + second)) == 4
        assert first == sorted(first)
        assert max(first) < second[0]

    async def test_what_was_not_sent_is_found_again(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        ids = await repository.commit(everything(job, outbox=self.PAYLOADS))
        assert [(i, dict(p)) for i, p in await repository.unsent()] == list(zip(ids, self.PAYLOADS, strict=True))

    async def test_what_is_marked_is_not(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        ids = await repository.commit(everything(job, outbox=self.PAYLOADS))
        await repository.commit(turn_of(job, NOTHING, sent=ids[:2]))
        assert [entry_id for entry_id, _ in await repository.unsent()] == ids[2:]

    async def test_a_turn_without_entries_has_no_ids(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        assert await repository.commit(everything(job)) == []
        assert await repository.unsent() == []


class TestWishes:
    async def test_none_at_first(self, shelf: Any) -> None:
        assert await (await opened(shelf)).desired() is None

    async def test_the_one_that_was_answered_is_cleared(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await shelf.wish("pause")
        assert await repository.desired() == "pause"
        await repository.commit(everything(job, desired_done="pause"))
        assert await repository.desired() is None

    async def test_a_newer_one_stays(self, shelf: Any) -> None:
        """The owner cancelled while the pause was on its way through the machine."""
        repository, job = await opened(shelf), busy()
        await shelf.wish("cancel")
        await repository.commit(everything(job, desired_done="pause"))
        assert await repository.desired() == "cancel"

    async def test_a_turn_that_answers_nothing_clears_nothing(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await shelf.wish("resume")
        await repository.commit(everything(job))
        assert await repository.desired() == "resume"


class TestRewards:
    async def test_those_of_attempts_that_are_scored_now(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        (scoring,) = [a for a in job.state.attempts.values() if a.state == "scoring"]
        done = next(a for a in job.rows.values() if a.state == "trained")
        await shelf.reward(*scoring.key, "grade", 0.75)
        await shelf.reward(*done.key, "grade", 1.0)
        found = await repository.rewards_of_waiting()
        assert [(row["trajectory_id"], row["attempt"], row["reward_name"], row["score"]) for row in found] == [
            (*scoring.key, "grade", 0.75)
        ]

    async def test_none_once_the_attempt_has_gone_on(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        (scoring,) = [a for a in job.state.attempts.values() if a.state == "scoring"]
        await shelf.reward(*scoring.key, "grade", 0.75)
        job.grade(scoring, 0.75)
        await repository.commit(everything(job))
        assert await repository.rewards_of_waiting() == []


class TestVersions:
    async def test_a_manifest_comes_back_byte_by_byte(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job))
        assert await repository.manifest(1) == manifest(1)
        assert await repository.manifest(7) is None

    async def test_abandoned_versions_are_marked_and_keep_the_rest(self, shelf: Any) -> None:
        repository = await opened(shelf)
        job = at_step(3, groups=1, max_steps=9, policy=make_policy(alpha=0), checkpoints=(1,))
        await repository.commit(everything(job))
        made_at = await shelf.committed_at(2)
        job.now += 100.0
        job.lose_trainer(restored_at=1)
        job.publish()
        versions = job.state.lineage.versions
        changed = [versions[n] for n in (2, 3, 4)]
        await repository.commit(turn_of(job, Changes([], [], changed, [], [])))
        stored = await repository.load(job.plan)
        assert [v.policy_version for v in stored.versions if v.state is VersionState.ABANDONED] == [2, 3]
        assert await repository.manifest(2) == manifest(2)
        assert await shelf.committed_at(2) == made_at
        assert restore(stored).state.lineage.current == 4

    async def test_abandoning_needs_no_manifest(self, shelf: Any) -> None:
        """A new runner has only the manifests that it needs."""
        repository = await opened(shelf)
        job = at_step(2, groups=1, max_steps=9, policy=make_policy(alpha=0), checkpoints=(1,))
        await repository.commit(everything(job))
        job.lose_trainer(restored_at=1)
        job.publish()
        changed = [job.state.lineage.versions[n] for n in (2, 3)]
        await repository.commit(turn_of(job, Changes([], [], changed, [], []), manifests={3: manifest(3)}))
        stored = await repository.load(job.plan)
        assert [v.state.value for v in stored.versions] == ["committed", "committed", "abandoned", "committed"]


class TestSteps:
    async def test_the_batch_that_is_out_comes_back_in_order_with_its_digest(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        while job.state.training is None:
            job.finish_all()
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        out = next(s for s in stored.steps if s.state == "sampled")
        step = job.state.steps[2]
        assert (out.step, out.batch_digest, out.policy_version) == (2, step.batch_digest, 1)
        assert out.publish_version == step.publish_version
        assert out.groups == step.groups
        assert out.published_version is None

    async def test_what_a_member_weighs_in_its_batch(self, shelf: Any) -> None:
        repository = await opened(shelf)
        job = running(groups=1, max_steps=9, policy=make_policy(alpha=0))
        job.finish_group(job.groups[0])
        step = job.state.steps[1]
        weighed = [m._replace(weight=weight) for m, weight in zip(step.groups[0].members, (2.5, 0.1), strict=True)]
        step.groups = (step.groups[0]._replace(members=tuple(weighed)),)
        for member in weighed:
            job.rows[member.key].weight = member.weight
        await repository.commit(everything(job))
        (out,) = (await repository.load(job.plan)).steps
        assert [m.weight for m in out.groups[0].members] == [2.5, 0.1]

    async def test_batches_since_the_checkpoint_come_back_for_a_replay(self, shelf: Any) -> None:
        repository = await opened(shelf)
        job = at_step(5, groups=2, max_steps=9, policy=make_policy(alpha=1), checkpoints=(2,))
        await repository.commit(everything(job))
        stored = await repository.load(job.plan)
        committed = [s for s in stored.steps if s.state == "committed"]
        assert [s.step for s in committed] == [3, 4, 5]
        for step in committed:
            kept = job.state.steps[step.step]
            assert (step.batch_digest, step.groups) == (kept.batch_digest, kept.groups)
            assert step.published_version == kept.published_version

    async def test_metrics_and_seconds_of_a_step(self, shelf: Any) -> None:
        repository, job = await opened(shelf), running(groups=1, policy=make_policy(alpha=0), max_steps=9)
        job.finish_all()
        job.commit(metrics={"loss": 0.25}, seconds={"update": 1.5})
        await repository.commit(everything(job))
        (step,) = (await repository.load(job.plan)).steps
        assert step.metrics["loss"] == 0.25
        assert step.seconds["update"] == 1.5
        assert step.committed_at == job.now


class TestJobRow:
    async def test_phase_step_and_version_are_shown(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job, progress={"step": 1}))
        row = await shelf.job()
        assert (row["phase"], row["step"], row["current_version"], row["epoch"]) == ("running", 1, 1, 1)
        assert row["progress"] == {"step": 1}
        assert row["ledger"]["is_balanced"] is True

    async def test_progress_stays_when_a_turn_has_none(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job, progress={"step": 1}))
        await repository.commit(turn_of(job, NOTHING))
        assert (await shelf.job())["progress"] == {"step": 1}

    async def test_the_result_of_an_ended_job(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        job.tell(did.CancelRequested("enough"))
        await repository.commit(everything(job, result={"steps": 1}))
        row = await shelf.job()
        assert (row["phase"], row["reason"], row["result"]) == ("cancelled", "enough", {"steps": 1})
        stored = await repository.load(job.plan)
        assert list(stored.groups) == []
        assert restore(stored).state.is_ended

    async def test_events_are_kept_in_order(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        lines = [Announce("a", {"n": 1}), Announce("b"), Announce("a", {"n": 2})]
        await repository.commit(everything(job, announced=lines))
        assert await shelf.events() == [("a", {"n": 1}), ("b", {}), ("a", {"n": 2})]

    async def test_a_metric_of_a_step_has_one_value(self, shelf: Any) -> None:
        repository, job = await opened(shelf), busy()
        await repository.commit(everything(job, metrics=[MetricPoint("loss", 1, 0.5), MetricPoint("loss", 2, 0.25)]))
        await repository.commit(turn_of(job, NOTHING, metrics=[MetricPoint("loss", 2, 0.125)]))
        assert await shelf.metrics() == {("loss", 1): 0.5, ("loss", 2): 0.125}
