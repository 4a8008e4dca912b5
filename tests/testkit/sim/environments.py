"""Scripted environment processes: an episode a coroutine, outcomes kept until they are acknowledged."""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testkit.sim.inference import Turn
from testkit.sim.links import Link

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.rows import Key, SegmentRow

if TYPE_CHECKING:
    from testkit.sim.world import World

PROMPT_TOKENS = 4
COHORT_GRACE_S = 1.0


@dataclass(eq=False)
class Episode:
    assigned: do.AssignAttempt
    n_turns: int
    turn_s: float
    segments: list[SegmentRow] = field(default_factory=list)
    started: did.AttemptStarted | None = None
    turns_done: int = 0
    turn: Turn | None = None
    discarded: int = 0

    @property
    def n_generated(self) -> int:
        return sum(segment.n_tokens for segment in self.segments)


@dataclass(eq=False)
class Cohort:
    """Episodes in lockstep: they wait for each other before every turn, for a moment also for members to come."""

    size: int
    n_joined: int = 0
    is_gathered: bool = False
    members: list[Episode] = field(default_factory=list)
    arrived: list[Episode] = field(default_factory=list)

    def released(self) -> list[Episode]:
        """Whoever may go on now; empty while somebody is waited for."""
        if len(self.arrived) < len(self.members) or not (self.is_gathered or self.n_joined >= self.size):
            return []
        released, self.arrived = self.arrived, []
        return released


class EnvironmentProcess:
    """One incarnation."""

    def __init__(self, world: "World", worker_id: str) -> None:
        self.world, self.worker_id = world, worker_id
        self.rng: random.Random = world.rng
        self.is_alive = True
        self.epoch = 0
        self.link: Link | None = None
        self.running: dict[Key, Episode] = {}
        self.final: dict[Key, did.AttemptFinished | did.AttemptFailed] = {}
        self.acknowledged: set[Key] = set()
        self.is_paused = False
        self.held: list[Episode] = []
        self.cohorts: dict[str, Cohort] = {}

    # -- the runner's stream -----------------------------------------------------------------------------------------

    def open(self, link: Link, is_paused: bool) -> None:
        """A new stream: what runs is named, and everything not acknowledged is sent again."""
        if not self.is_alive or link.epoch < self.epoch:
            return
        self.link, self.epoch = link, link.epoch
        self._set_paused(is_paused)
        self.tell(did.EnvOpened(self.worker_id, self.world.schedule.slots, frozenset(self.running)))
        for episode in self.running.values():
            if episode.started is not None:
                self.tell(episode.started)
        for outcome in self.final.values():
            self.tell(outcome)

    def tell(self, event: did.Event) -> None:
        if self.is_alive and self.link is not None:
            self.link.answer(self.world.hear, self.link, event)

    def command(self, epoch: int, action: do.Action) -> None:
        if not self.is_alive or epoch < self.epoch:
            return
        match action:
            case do.AssignAttempt():
                self._assign(action)
            case do.AbortAttempt(key, _, reason):
                self._abort(key, reason)
            case do.AcknowledgeAttempt(key, _):
                if self.final.pop(key, None) is not None:
                    self.acknowledged.add(key)
            case do.PauseRollout():
                self._set_paused(True)
            case do.ResumeRollout():
                self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        if not is_paused:
            held, self.held = self.held, []
            for episode in held:
                self._next_turn(episode)

    def _assign(self, action: do.AssignAttempt) -> None:
        key = action.key
        if key in self.running:
            started = self.running[key].started
            if started is not None:
                self.tell(started)
        elif key in self.final:
            self.tell(self.final[key])
        elif key not in self.acknowledged:
            tail = 10.0 if self.world.happens("tail") else 1.0
            turn_s = self.rng.uniform(0.1, 1.0) * tail * self.world.pace
            episode = Episode(action, self.world.schedule.n_turns, turn_s)
            self.running[key] = episode
            if action.cohort:
                cohort = self.cohorts.setdefault(action.cohort, Cohort(action.cohort_size))
                cohort.members.append(episode)
                cohort.n_joined += 1
            self.world.clock.after(self.rng.uniform(0.02, 0.2) * self.world.pace, self._ready, episode)

    def _abort(self, key: Key, reason: str) -> None:
        episode = self.running.get(key)
        if episode is not None:
            self._fail(episode, "", reason)
        elif key in self.final:
            self.tell(self.final[key])
        elif key not in self.acknowledged:
            self.final[key] = did.AttemptFailed(key, "infra", "unknown", "", env_worker_id=self.worker_id)
            self.tell(self.final[key])

    # -- an episode --------------------------------------------------------------------------------------------------

    def _lives(self, episode: Episode) -> bool:
        return self.is_alive and self.running.get(episode.assigned.key) is episode

    def _ready(self, episode: Episode) -> None:
        """The next turn, when its cohort is ready as well."""
        if not self._lives(episode):
            return
        cohort = self.cohorts.get(episode.assigned.cohort)
        if cohort is None:
            self._next_turn(episode)
            return
        cohort.arrived.append(episode)
        if not cohort.is_gathered:
            self.world.clock.after(COHORT_GRACE_S, self._gathered, cohort)
        self._release(cohort)

    def _gathered(self, cohort: Cohort) -> None:
        cohort.is_gathered = True
        self._release(cohort)

    def _release(self, cohort: Cohort) -> None:
        for episode in cohort.released():
            self.world.n_in_step += 1
            self._next_turn(episode)

    def _next_turn(self, episode: Episode) -> None:
        if not self._lives(episode):
            return
        if self.is_paused:
            self.held.append(episode)
            return
        if self.world.happens("env_failure"):
            self._fail(episode, "env", "step_timeout")
            return
        if self.world.happens("infra_failure"):
            self._fail(episode, "infra", "stream_lost")
            return
        episode.turn = Turn(
            episode.assigned.key,
            episode.assigned.pinned_version,
            episode.turn_s,
            on_first=lambda version: self._first(episode, version),
            on_done=lambda: self._turned(episode),
            on_lost=lambda code: self._fail(episode, "infra", code) if self._lives(episode) else None,
            segments=episode.segments,
        )
        self.world.proxy.submit(episode.turn)

    def _first(self, episode: Episode, version: int) -> None:
        if self._lives(episode) and episode.started is None:
            episode.started = did.AttemptStarted(episode.assigned.key, version)
            self.tell(episode.started)

    def _turned(self, episode: Episode) -> None:
        if not self._lives(episode):
            return
        assert episode.turn is not None
        episode.discarded += episode.turn.discarded
        episode.turn = None
        episode.turns_done += 1
        if episode.turns_done >= episode.n_turns:
            self._finish(episode)
        else:
            self.world.clock.after(self.rng.uniform(0.02, 0.3) * self.world.pace, self._ready, episode)

    def _finish(self, episode: Episode) -> None:
        action = episode.assigned
        task = self.world.plan.task(action.task)
        segments = () if self.world.happens("empty") else tuple(episode.segments)
        n_generated = sum(segment.n_tokens for segment in segments)
        self._end(
            did.AttemptFinished(
                action.key,
                f"blob-{action.key.trajectory_id}-{action.key.attempt}",
                "grading",
                PROMPT_TOKENS + n_generated,
                n_generated,
                episode.n_turns,
                segments,
                self.rng.choice([0.0, 1.0]) if task.has_env_reward else None,
                "completed",
                False,
                self.worker_id,
                discarded_tokens=episode.discarded,
            )
        )

    def _fail(self, episode: Episode, kind: str, code: str) -> None:
        if episode.turn is not None:
            self.world.proxy.cancel(episode.turn)
        key = episode.assigned.key
        failed = did.AttemptFailed(
            key, kind, code, "scripted", episode.n_generated, self.worker_id, discarded_tokens=episode.discarded
        )
        self._end(failed)

    def _end(self, outcome: did.AttemptFinished | did.AttemptFailed) -> None:
        key = outcome.key
        episode = self.running.pop(key)
        self.world.proxy.release(key)
        self.final[key] = outcome
        self.tell(outcome)
        cohort = self.cohorts.get(episode.assigned.cohort)
        if cohort is not None:  # the others do not wait for it any more
            cohort.members.remove(episode)
            if episode in cohort.arrived:
                cohort.arrived.remove(episode)
            self._release(cohort)

    def die(self) -> None:
        """Everything that ran here is gone; its requests are withdrawn."""
        self.is_alive = False
        for key, episode in self.running.items():
            if episode.turn is not None:
                self.world.proxy.cancel(episode.turn)
            self.world.proxy.release(key)
