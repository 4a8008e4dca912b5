"""What must hold of a job's stored rows after every transaction, recomputed from the rows alone.

The machine is not asked: counts, lags, rewards and batches are worked out again from what is stored.
"""

import json
import math
from collections import Counter
from typing import Any

from testkit.sim.database import Row, Rows
from testkit.sim.schedule import Schedule

from control_plane.runner.turn import Turn
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import Key
from headrace.core.job.state import Phase
from headrace.core.ledger import IN_FLIGHT

_LIVE = frozenset(state.value for state in IN_FLIGHT)
_WAITING = ("open", "complete", "ready")
MAX_OPEN_S = 500.0
"""Longest that an admitted group may be without an end or a full set of members, pauses apart."""


class Audit:
    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.drains = plan.policy.load_at == "drain"
        self.attempts: dict[Key, Row] = {}
        self.groups: dict[str, Row] = {}
        self.steps: dict[int, Row] = {}
        self.digests: dict[int, str] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.group_counts: Counter[tuple[str, str]] = Counter()
        self.batches: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.owner_of_group: dict[str, int] = {}
        self.lent = 0

    # -- after a transaction -----------------------------------------------------------------------------------------

    def turn(self, turn: Turn, rows: Rows, now: float) -> None:
        """Looks at what the transaction changed, and at the sums."""
        for version in turn.changes.versions:
            self._version(rows.versions[version.policy_version])
        for group in turn.changes.groups:
            self._group(rows.groups[group.id])
        for attempt in turn.changes.attempts:
            self._attempt(rows.attempts[attempt.key], rows)
        for step in turn.changes.steps:
            self._step(rows.steps[step.step], rows)
        self._equation(turn.ledger)
        short_since = turn.state["marks"].get("quota_short", now)
        if now - short_since >= self.plan.limits.quota_patience_s:
            self.lent = self.plan.groups  # a task that filled its quota may fill another's as well
        self._bounds()

    def again(self, rows: Rows) -> None:
        """The same over all rows at once, from nothing."""
        fresh = Audit(self.plan)
        fresh.lent = self.plan.groups if len(self.plan.tasks) > 1 else 0  # how the job came to this is not looked at
        fresh._everything(rows)

    def _everything(self, rows: Rows) -> None:
        for version in rows.versions.values():
            self._version(version)
        for group in rows.groups.values():
            self._group(group)
        for attempt in rows.attempts.values():
            self._attempt(attempt, rows)
        for _, step in sorted(rows.steps.items()):
            self._step(step, rows)
        self._equation(rows.job["ledger"])
        self._bounds()

    def _version(self, row: Row) -> None:
        known = self.digests.setdefault(row["policy_version"], row["manifest_digest"])
        assert known == row["manifest_digest"], f"version {row['policy_version']} was committed with other bytes"

    def _group(self, row: Row) -> None:
        known = self.groups.get(row["id"])
        if known is not None:
            self.group_counts[known["purpose"], known["state"]] -= 1
            assert known["closed_at"] is None or known["closed_at"] == row["closed_at"], f"{row['id']} closed twice"
        self.groups[row["id"]] = row
        if row["closed_at"] is None:
            self.group_counts[row["purpose"], row["state"]] += 1
        else:
            self.group_counts[row["purpose"], "closed"] += 1

    def _attempt(self, row: Row, rows: Rows) -> None:
        key = Key(row["trajectory_id"], row["attempt"])
        known = self.attempts.get(key)
        if known is not None:
            self._count(known, -1)
            same = known["state"] == row["state"] or (known["state"], row["state"]) == ("trained", "rolled_back")
            assert known["state"] in _LIVE or same, f"{key} left as {known['state']} and again as {row['state']}"
        self.attempts[key] = row
        self._count(row, 1)
        before = known["state"] if known is not None else ""
        if row["state"] in ("ready", "evaluated") and before not in ("ready", "evaluated"):
            self._reward(key, row, rows)
            self._segments(key, row, rows)
        if row["state"] in ("sampled", "trained") and before not in ("sampled", "trained"):
            self._lag(key, row, rows)

    def _count(self, row: Row, sign: int) -> None:
        name = (row["purpose"], row["task"], row["state"])
        self.counts[name] += sign
        if row["state"] not in _LIVE:
            self.tokens[name] += sign * row["n_generated_tokens"]

    def _reward(self, key: Key, row: Row, rows: Rows) -> None:
        """Each of its task's rewards counts once: the stored report, and what the environment gave."""
        task = self.plan.task(row["task"])
        graded = 0.0
        for name, weight in zip(task.reward_names, task.reward_weights, strict=True):
            report = rows.rewards[(*key, name)]
            assert report["state"] == "scored", f"{key} counts {name}, which has no score"
            graded += weight * report["score"]
        own = (0.0, task.env_reward_weight) if task.has_env_reward else (0.0,)
        assert any(math.isclose(row["reward"], graded + value) for value in own), (key, row["reward"], graded)

    def _segments(self, key: Key, row: Row, rows: Rows) -> None:
        segments, position = [], 0
        while (segment := rows.segments.get((*key, position))) is not None:
            segments.append(segment)
            position += 1
        versions = {segment["policy_version"] for segment in segments}
        assert row["start_version"] == segments[0]["policy_version"], f"{key}: v0 is of its first kept token"
        if self.drains or row["purpose"] == "eval":
            assert len(versions) == 1, f"{key} has tokens of versions {sorted(versions)}"
        if row["purpose"] == "eval":
            admitted = rows.groups[row["group_id"]]["admitted_version"]
            assert versions == {admitted}, f"{key} is an evaluation of {admitted}, with tokens of {sorted(versions)}"

    def _lag(self, key: Key, row: Row, rows: Rows) -> None:
        """L <= alpha in ancestors, counted along the stored versions at the take."""
        taken_at = row["sample_version"]
        lag, version = 0, taken_at
        while version is not None and version != row["start_version"]:
            lag, version = lag + 1, rows.versions[version]["parent_version"]
        assert version is not None, f"{key}: {row['start_version']} is no ancestor of {taken_at}"
        alpha = self.plan.policy.alpha
        assert alpha is None or lag <= alpha, f"{key} was taken {lag} updates late, alpha {alpha}"

    def _step(self, row: Row, rows: Rows) -> None:
        number = row["step"]
        known = self.steps.get(number)
        batch = (row["batch_digest"], tuple(row["group_ids"]))
        if known is not None:
            ids = known["group_ids"]
            assert row["group_ids"][: len(ids)] == ids, f"step {number} lost or exchanged groups that it had taken"
            assert known["state"] != "committed" or row["state"] == "committed", f"step {number} is open again"
        self.steps[number] = row
        if row["n_groups"] == self.plan.groups:
            assert self.batches.setdefault(number, batch) == batch, f"the batch of step {number} has changed"
        for group_id in row["group_ids"]:
            owner = self.owner_of_group.setdefault(group_id, number)
            assert owner == number, f"{group_id} is in the batches of steps {owner} and {number}"
        if row["state"] == "committed" and (known is None or known["state"] != "committed"):
            self._committed(row, rows)

    def _committed(self, row: Row, rows: Rows) -> None:
        number = row["step"]
        assert number - 1 in self.steps or number == 1, f"step {number} committed before {number - 1}"
        assert row["n_groups"] == self.plan.groups == len(set(row["group_ids"])), row["group_ids"]
        version = rows.versions[row["published_version"]]
        assert version["step"] == number, f"step {number} published a version of step {version['step']}"
        members: dict[str, list[Row]] = {group_id: [] for group_id in row["group_ids"]}
        for attempt in rows.attempts.values():
            if attempt["step"] == number and attempt["state"] == "trained":
                members[attempt["group_id"]].append(attempt)
        least = self.plan.group_size if self.plan.on_short == "drop" else min(2, self.plan.group_size)
        for group_id, trained in members.items():
            siblings = {attempt["sibling"] for attempt in trained}
            assert len(siblings) == len(trained), f"{group_id} trained a sibling twice"
            assert least <= len(trained) <= self.plan.group_size, f"{group_id} trained {len(trained)} members"
        self._quotas(row, rows)

    def _quotas(self, row: Row, rows: Rows) -> None:
        state = (
            json.loads(rows.job["runner_state"])
            if isinstance(rows.job["runner_state"], str)
            else rows.job["runner_state"]
        )
        is_lent = state["counters"].get("quota_lent", 0)
        can_run_out = any(task.n_prompts is not None for task in self.plan.tasks)
        if not is_lent and not can_run_out:
            taken = Counter(rows.groups[group_id]["task"] for group_id in row["group_ids"])
            wanted = Counter(self.plan.quotas())
            assert +taken == +wanted, f"step {row['step']} took {taken}, the quotas are {wanted}"

    # -- sums --------------------------------------------------------------------------------------------------------

    def _equation(self, stored: Any) -> None:
        """Both sides as recorded against a count of the rows; tokens of what has left as well."""
        ledger = json.loads(stored) if isinstance(stored, str) else stored
        states = {name: count for name, count in self.counts.items() if count}
        issued: dict[tuple[str, str], int] = {}
        for (purpose, task, _), count in states.items():
            issued[purpose, task] = issued.get((purpose, task), 0) + count
        assert issued == _of_two(ledger["issued"]), ("issued: rows, ledger", issued, ledger["issued"])
        recorded = _of_three(ledger["closed"]) | _of_three(ledger["in_flight"])
        assert states == recorded, ("states: rows, ledger", states, recorded)
        tokens = {name: count for name, count in self.tokens.items() if count}
        stored_tokens = {name: count for name, count in _of_three(ledger["tokens"]).items() if count}
        assert tokens == stored_tokens, ("tokens: rows, ledger", tokens, stored_tokens)
        assert ledger["is_balanced"]

    def _bounds(self) -> None:
        """Buffer, room and attempts in flight."""
        plan, policy = self.plan, self.plan.policy
        waiting = sum(self.group_counts["train", state] for state in _WAITING)
        batches = 2 if policy.alpha is None else policy.alpha + 1
        bound = policy.overcommit * batches * plan.groups + self.lent
        assert waiting <= bound, f"{waiting} groups wait, alpha {policy.alpha}, {self.lent} lent"
        if plan.room.trajectories is None and policy.max_inflight is None:
            return
        held: Counter[str] = Counter()
        for row in self.attempts.values():
            if row["purpose"] == "train" and row["state"] in _LIVE:
                held[row["state"]] += 1
        generating = held["queued"] + held["running"] + held["scoring"]
        assert policy.max_inflight is None or generating <= policy.max_inflight, (held, policy.max_inflight)
        in_buffer = held.total() - held["sampled"]
        assert plan.room.trajectories is None or in_buffer <= plan.room.trajectories, (held, plan.room)

    # -- at the end --------------------------------------------------------------------------------------------------

    def ended(self, phase: Phase, rows: Rows, schedule: Schedule) -> None:
        """Nothing is left in hand, and the job ended for a reason that the schedule holds."""
        self.again(rows)
        for row in rows.attempts.values():
            assert row["state"] not in _LIVE, f"{row['trajectory_id']} is {row['state']} at the end"
        for row in rows.groups.values():
            assert row["closed_at"] is not None, f"{row['id']} never ended"
            if row["purpose"] == "train":
                self._took_no_longer_than_it_may(row, schedule)
        self._trained_once(rows)
        reason = rows.job["reason"] or ""
        faults = {fault.kind for fault in schedule.faults}
        allowed = reason == "all steps trained"
        if any(task.n_prompts is not None for task in self.plan.tasks):
            allowed |= reason == "prompts ran out" or reason.startswith("no_steps")
        allowed |= "cancel" in faults and phase is Phase.CANCELLED
        allowed |= "trainer_fault" in faults and reason.startswith("out_of_memory")
        allowed |= schedule.chances.env_failure > 0 and reason.startswith("groups_failing")
        assert allowed, f"the job is {phase.value}: {reason}"
        if reason == "all steps trained":
            assert rows.job["step"] == self.plan.max_steps

    def _took_no_longer_than_it_may(self, row: Row, schedule: Schedule) -> None:
        """From admission to a full set of members, or to the end of the group."""
        pauses_s = sum(30.0 for fault in schedule.faults if "pause" in fault.kind)
        open_s = (row["ready_at"] or row["closed_at"]).timestamp() - row["created_at"].timestamp()
        assert open_s <= MAX_OPEN_S + pauses_s, f"{row['id']} was open for {open_s:.0f} s"

    def _trained_once(self, rows: Rows) -> None:
        trained = [(row["trajectory_id"], row["step"]) for row in rows.attempts.values() if row["state"] == "trained"]
        assert len({trajectory for trajectory, _ in trained}) == len(trained), "a trajectory was trained twice"
        in_steps = {
            group_id for row in rows.steps.values() if row["state"] == "committed" for group_id in row["group_ids"]
        }
        of_trained = {row["group_id"] for row in rows.attempts.values() if row["state"] == "trained"}
        assert in_steps == of_trained, "the batches of the steps are not what was trained"


def _of_two(tree: dict[str, dict[str, int]]) -> dict[tuple[str, str], int]:
    """Counts by (purpose, task)."""
    return {(purpose, task): count for purpose, tasks in tree.items() for task, count in tasks.items()}


def _of_three(tree: dict[str, dict[str, dict[str, int]]]) -> dict[tuple[str, str, str], int]:
    """Counts by (purpose, task, state)."""
    return {
        (purpose, task, state): count
        for purpose, tasks in tree.items()
        for task, states in tasks.items()
        for state, count in states.items()
    }
