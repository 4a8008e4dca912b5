"""After any sequence of events, sensible or not: the invariants hold, the books balance, nothing is trained twice."""

from collections import Counter
from inspect import signature
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from testkit.jobs import ENV, TOOLS, Job, is_generating, make_plan, make_policy, of

from headrace.core.async_policy import PRESETS
from headrace.core.buffer import SAMPLERS, Room
from headrace.core.censoring import stratum
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.accounting import staleness
from headrace.core.job.plan import TaskPlan
from headrace.core.job.rows import Attempt, GroupState, Key, SegmentRow
from headrace.core.job.state import TERMINAL, Phase
from headrace.core.ledger import AttemptState

CENSORED = (AttemptState.SURPLUS, AttemptState.EVICTED_STALE)
PICK = st.integers(0, 1 << 20)


class AnyEvents(RuleBasedStateMachine):
    """The processes around a job, in any order and at any time: late, twice, dying, of another life."""

    @initialize(
        alpha=st.sampled_from([0, 1, 3]),
        preset=st.sampled_from([*PRESETS, "bounded/get_batch"]),
        on_short=st.sampled_from(["drop", "shrink"]),
        redundancy=st.sampled_from(["1", "1.5"]),
        on_stale=st.sampled_from(["evict", "wait"]),
        filter_=st.sampled_from(["none", "zero_variance"]),
        prompts=st.sampled_from([None, 6]),
        updates=st.sampled_from([1, 2]),
        sampler=st.sampled_from(sorted(SAMPLERS)),
        room=st.sampled_from([Room(), Room(trajectories=6), Room(n_bytes=1)]),
    )
    def begin(
        self,
        alpha: int,
        preset: str,
        on_short: str,
        redundancy: str,
        on_stale: str,
        filter_: str,
        prompts: int | None,
        updates: int,
        sampler: str,
        room: Room,
    ) -> None:
        name, _, load_at = preset.partition("/")
        fields = {"load_at": load_at, "alpha": max(alpha, 1)} if load_at else {"alpha": alpha}
        plan = make_plan(
            policy=make_policy(name, on_stale=on_stale, **fields),
            updates_per_step=updates,
            sampler=SAMPLERS[sampler],
            room=room,
            selection_cap=4.0 if updates == 2 else None,
            on_short=on_short,
            redundancy=redundancy,
            filter=filter_,
            max_steps=4,
            tasks=(TaskPlan("lake", n_prompts=prompts), TOOLS),
            evaluation={"episodes": 1, "every": 2, "deadline_s": 50.0},
            limits={"max_attempts": 2, "prefetch_s": 5.0, "update_s": 5.0, "pause_ttl_s": 20.0, "step_s": 500.0},
        )
        self.job = Job(plan, slots=9)
        self.job.connect()
        self.trained: set[Key] = set()
        self.checkpoint = 0
        self.life = 0

    # -- helpers -------------------------------------------------------------------------------------------------------

    def any_attempt(self, pick: int) -> Attempt | None:
        rows = list(self.job.rows.values())
        return rows[pick % len(rows)] if rows else None

    def running_attempt(self, pick: int) -> Attempt | None:
        held = [a for a in self.job.generating if a.env_worker_id]
        return held[pick % len(held)] if held else None

    def tell(self, *events: did.Event) -> None:
        if self.job.state.phase not in TERMINAL or self.life % 3 == 0:
            self.job.tell(*events)

    # -- episodes ------------------------------------------------------------------------------------------------------

    @rule(pick=PICK, older=st.booleans())
    def start(self, pick: int, older: bool) -> None:
        attempt, current = self.running_attempt(pick), self.job.state.lineage.current
        if attempt is not None and current is not None:
            versions = sorted(self.job.state.lineage.versions)
            self.tell(did.AttemptStarted(attempt.key, versions[pick % len(versions)] if older else current))

    @rule(pick=PICK, reward=st.sampled_from([0.0, 1.0, 1.0, None]), tokens=st.sampled_from([8, 8, 8, 0]))
    def finish(self, pick: int, reward: float | None, tokens: int) -> None:
        attempt = self.running_attempt(pick)
        if attempt is not None and self.job.state.lineage.current is not None:
            self.tell(self.job.finished(attempt, reward, n_generated_tokens=tokens))

    @rule(pick=PICK)
    def finish_a_group(self, pick: int) -> None:
        groups = [g for g in self.job.groups if g.state == "open" and all(a.env_worker_id for a in g.live)]
        if groups and self.job.state.lineage.current is not None:
            group = groups[pick % len(groups)]
            self.tell(*(self.job.finished(a, float(a.sibling % 2)) for a in group.live if is_generating(a)))

    @rule(pick=PICK)
    def report_again(self, pick: int) -> None:
        """Any attempt ever issued, as if by a process that missed the acknowledgement."""
        attempt = self.any_attempt(pick)
        if attempt is not None and not is_generating(attempt):
            before = (attempt.state, attempt.reward)
            segments = (SegmentRow(0, "inference-0@a", "digest-0", 8),)
            self.tell(self.job.finished(attempt, 0.25, segments=segments))
            assert (attempt.state, attempt.reward) == before

    @rule(pick=PICK, kind=st.sampled_from(["env", "infra"]))
    def fail(self, pick: int, kind: str) -> None:
        attempt = self.running_attempt(pick)
        if attempt is not None:
            self.tell(did.AttemptFailed(attempt.key, kind, "scripted", "x", env_worker_id=attempt.env_worker_id))

    @rule(pick=PICK, score=st.sampled_from([0.0, 1.0, 1.0, None]), is_retryable=st.booleans())
    def grade(self, pick: int, score: float | None, is_retryable: bool) -> None:
        scoring = [a for a in self.job.rows.values() if a.state is AttemptState.SCORING]
        attempt = scoring[pick % len(scoring)] if scoring else self.any_attempt(pick)
        if attempt is not None:
            self.tell(did.RewardReported(attempt.key, "grade", score, "x", is_retryable and score is None))

    # -- weights and steps ---------------------------------------------------------------------------------------------

    @rule(pick=PICK, fault=st.sampled_from(["", "", "", "unreachable"]))
    def prefetch(self, pick: int, fault: str) -> None:
        asked = of(self.job.log, do.PrefetchWeights)
        if asked:
            worker = self.job.workers[pick % 2]
            self.tell(did.WeightsPrefetched(worker, asked[-1].policy_version, fault))

    @rule(fault=st.sampled_from(["", "", "", "mismatch"]))
    def update(self, fault: str) -> None:
        asked = of(self.job.log, do.UpdateWeights)
        if asked:
            self.tell(*(did.WeightsUpdated(w, asked[-1].policy_version, fault) for w in asked[-1].worker_ids))

    @rule()
    def load(self) -> None:
        if of(self.job.log, do.PrefetchWeights) and self.job.state.phase not in TERMINAL:
            self.job.load()

    @rule()
    def publish(self) -> None:
        if self.job.state.publishing is not None:
            self.job.publish()

    @rule(saves=st.booleans())
    def commit(self, saves: bool) -> None:
        state = self.job.state
        if state.training is None or not state.steps[state.training].is_full(self.job.plan.groups):
            return  # a batch that is handed over in parts is answered for once it is whole
        step = self.job.train_step
        was_sampled = state.steps[step.step].state == "sampled"
        taken = state.steps[step.step].groups
        if saves:
            self.checkpoint = max(self.checkpoint, step.step)
        self.job.commit(checkpoint_step=self.checkpoint)
        if was_sampled:
            keys = {m.key for g in taken for m in g.members}
            assert not keys & self.trained
            self.trained |= keys

    @rule(is_attached=st.booleans())
    def lose_trainer(self, is_attached: bool) -> None:
        state = self.job.state
        if state.lineage.current is None or state.phase in TERMINAL:
            return
        stands = state.lineage.versions[state.lineage.current].step
        self.job.lose_trainer(
            restored_at=stands if is_attached else min(self.checkpoint, stands), is_attached=is_attached
        )

    @rule()
    def close(self) -> None:
        self.tell(did.TrainingClosed("/models/m"))

    # -- processes -----------------------------------------------------------------------------------------------------

    @rule()
    def lose_environments(self) -> None:
        self.tell(did.EnvLost(ENV), did.EnvOpened(ENV, 9, frozenset()))

    @rule(only=st.sampled_from([(0,), (1,), (0, 1)]))
    def workers(self, only: tuple[int, ...]) -> None:
        self.tell(did.WorkersChanged(frozenset(self.job.workers[i] for i in only)))

    @rule(pick=PICK)
    def engine_lost(self, pick: int) -> None:
        self.tell(did.WorkerReported(self.job.workers[pick % 2], None, frozenset()))

    @rule()
    def proxy(self) -> None:
        self.tell(did.ProxyOpened(f"proxy@{self.life}"))

    @rule()
    def restart_runner(self) -> None:
        self.life += 1
        is_started = self.job.state.lineage.current is not None
        self.job.restart_runner()
        if self.job.state.phase in TERMINAL:
            return
        if is_started:
            current = self.job.state.lineage.current
            self.job.trainer_step = self.job.state.lineage.versions[current or 0].step
            self.job.reconnect()
        else:
            self.job.connect()

    # -- owner and clock -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.job.wait(seconds)

    @rule(event=st.sampled_from([did.PauseRequested(), did.ResumeRequested(), did.ResumeRequested()]))
    def owner(self, event: did.Event) -> None:
        self.tell(event)

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "job"):
            return
        state = self.job.state
        live = [(a.purpose, a.task) for a in self.job.rows.values() if a.is_in_flight]
        state.ledger.check(live)
        assert sum(self.job.counts().values()) == sum(n for (p, _), n in state.ledger.issued.items() if p == "train")

    @invariant()
    def the_buffer_counts_what_is_ready(self) -> None:
        if not hasattr(self, "job"):
            return
        flow, now = self.job.state.buffer, self.job.now
        ready_at = [group.ready_at for group in self.job.state.train_groups(GroupState.READY)]
        assert flow.depth == len(ready_at)
        entered_at = [at for at in ready_at if at is not None]
        assert flow.summary(now, entered_at)["littles_law_ratio"] == pytest.approx(1.0, abs=1e-6)

    @invariant()
    def what_was_kept_and_killed_is_counted_once(self) -> None:
        """Kept: what entered a batch. Killed: its last word was heard, is due, or a runner went before it came."""
        if not hasattr(self, "job"):
            return
        state, rows = self.job.state, list(self.job.rows.values())
        train = [a for a in rows if a.purpose == "train"]
        kept, killed = state.censoring.kept, state.censoring.killed
        assert kept.total() == sum(a.sample_version is not None for a in train)
        lost = [a for a in train if a.state in CENSORED]
        due = sum(a.state in CENSORED and a.purpose == "train" for a in state.closing.values())
        assert killed.total() + due <= len(lost)
        assert self.life or killed.total() + due == len(lost)
        for a in train:
            if a.sample_version is not None:
                assert kept[a.task, stratum(a.n_generated_tokens)] > 0

    @invariant()
    def tokens_of_closed_rows_are_in_the_ledger(self) -> None:
        if not hasattr(self, "job"):
            return
        found: Counter[tuple[str, str, str]] = Counter()
        for a in self.job.rows.values():
            if not a.is_in_flight:
                found[a.purpose, a.task, a.state.value] += a.n_generated_tokens
        assert +self.job.state.ledger.tokens == +found

    @invariant()
    def staleness_has_two_parts_and_one_entry_for_each_trained_row(self) -> None:
        if not hasattr(self, "job"):
            return
        for task, outcomes in staleness(self.job.state).items():
            parts = outcomes.get("trained", {})
            sums = {name: sum(int(lag) * n for lag, n in counts.items()) for name, counts in parts.items()}
            n_rows = {name: sum(counts.values()) for name, counts in parts.items()}
            sampled = [a for a in self.job.rows.values() if a.task == task and a.sample_version is not None]
            assert n_rows.get("s_train", 0) == n_rows.get("s_gen", 0) == n_rows.get("residence", 0) == len(sampled)
            assert sums.get("s_train", 0) == sums.get("s_gen", 0) + sums.get("residence", 0)
            alpha = self.job.plan.policy.alpha
            assert all(alpha is None or 0 <= int(lag) <= alpha for lag in parts.get("s_train", {}))

    @invariant()
    def what_is_trained_was_fresh_and_whole(self) -> None:
        if not hasattr(self, "job"):
            return
        alpha, size = self.job.plan.policy.alpha, self.job.plan.group_size
        for step in of(self.job.log, do.TrainStep)[-2:]:
            for group in step.groups:
                assert 2 <= len(group.members) <= size
                assert len({m.sibling for m in group.members}) == len(group.members)
                assert all(alpha is None or 0 <= m.lag <= alpha for m in group.members)
                assert all(m.reward is not None and m.token_blob for m in group.members)
            weights = [m.weight for group in step.groups for m in group.members]
            cap = self.job.plan.selection_cap or 1.0
            assert sum(weights) / len(weights) == pytest.approx(1.0) and 0 < min(weights) <= max(weights) <= cap

    @invariant()
    def what_waits_has_room(self) -> None:
        if not hasattr(self, "job"):
            return
        limit = self.job.plan.room.trajectories
        waiting = self.job.state.train_groups(GroupState.OPEN, GroupState.COMPLETE, GroupState.READY)
        assert limit is None or sum(len(group.live) for group in waiting) <= limit

    @invariant()
    def rows_of_trained_steps_are_trained(self) -> None:
        if hasattr(self, "job"):
            assert all(self.job.rows[key].state is AttemptState.TRAINED for key in self.trained)

    @invariant()
    def an_ended_job_has_nothing_in_flight(self) -> None:
        if hasattr(self, "job") and self.job.state.phase in TERMINAL:
            assert not any(a.is_in_flight for a in self.job.rows.values())
            assert self.job.state.phase is Phase.SUCCEEDED or self.job.state.reason


AnyEvents.TestCase.settings = settings(max_examples=40, stateful_step_count=60)
TestAnyEvents = AnyEvents.TestCase


# The same rules, weighted so that jobs live long: steps commit, checkpoints are saved, trainers come back.

MOVES = {
    AnyEvents.finish_a_group: 12,
    AnyEvents.commit: 6,
    AnyEvents.load: 6,
    AnyEvents.publish: 4,
    AnyEvents.finish: 3,
    AnyEvents.start: 3,
    AnyEvents.grade: 8,
    AnyEvents.wait: 2,
    AnyEvents.fail: 1,
    AnyEvents.report_again: 1,
    AnyEvents.prefetch: 1,
    AnyEvents.update: 1,
    AnyEvents.lose_trainer: 1,
    AnyEvents.lose_environments: 1,
    AnyEvents.workers: 1,
    AnyEvents.engine_lost: 1,
    AnyEvents.proxy: 1,
    AnyEvents.restart_runner: 1,
    AnyEvents.owner: 1,
}
VALUES: dict[str, tuple[Any, ...]] = {
    "older": (False, False, True),
    "reward": (0.0, 1.0, 1.0, None),
    "tokens": (8, 8, 30, 0),
    "kind": ("env", "infra"),
    "score": (0.0, 1.0, 1.0, None),
    "is_retryable": (False, True),
    "fault": ("", "", "", "scripted"),
    "saves": (False, True),
    "is_attached": (False, True),
    "only": ((0,), (1,), (0, 1)),
    "seconds": (0.1, 1.0, 6.0),
    "event": (did.PauseRequested(), did.ResumeRequested(), did.ResumeRequested()),
}
RULES = [
    (move, [name for name in signature(move).parameters if name != "self"])
    for move, weight in MOVES.items()
    for _ in range(weight)
]
INVARIANTS = [
    AnyEvents.books_balance,
    AnyEvents.the_buffer_counts_what_is_ready,
    AnyEvents.what_was_kept_and_killed_is_counted_once,
    AnyEvents.tokens_of_closed_rows_are_in_the_ledger,
    AnyEvents.staleness_has_two_parts_and_one_entry_for_each_trained_row,
    AnyEvents.what_is_trained_was_fresh_and_whole,
    AnyEvents.what_waits_has_room,
    AnyEvents.rows_of_trained_steps_are_trained,
    AnyEvents.an_ended_job_has_nothing_in_flight,
]


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), preset=st.sampled_from([*PRESETS, "bounded/get_batch"]))
def test_long_lives_keep_every_promise_too(seed: int, preset: str) -> None:
    rng, life = Random(seed), AnyEvents()
    life.begin(
        alpha=rng.choice([0, 1, 3]),
        preset=preset,
        on_short=rng.choice(["drop", "shrink"]),
        redundancy=rng.choice(["1", "1.5"]),
        on_stale=rng.choice(["evict", "wait"]),
        filter_=rng.choice(["none", "zero_variance"]),
        prompts=rng.choice([None, 6]),
        updates=rng.choice([1, 2]),
        sampler=rng.choice(sorted(SAMPLERS)),
        room=rng.choice([Room(), Room(trajectories=6), Room(n_bytes=1)]),
    )
    life.publish()
    life.load()
    for _ in range(150):
        move, names = rng.choice(RULES)
        values = {name: rng.randrange(1 << 20) if name == "pick" else rng.choice(VALUES[name]) for name in names}
        move(life, **values)
        for invariant_ in INVARIANTS:
            invariant_(life)
