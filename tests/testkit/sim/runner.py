"""A runner of the job: the real TurnTaker between scripted peers, with crashes where a process can die.

handle, check ─► |before_commit| ─► transaction ─► |after_commit| ─► effects, |mid_effects| among them
  ─► |before_send| ─► outbox entries ─► |after_send|
"""

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testkit.sim.database import Repository, Row
from testkit.sim.links import Link
from testkit.sim.schedule import spec

from control_plane.runner.turn import StoredManifest, Turn
from control_plane.runner.turning import TurnTaker
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job import snapshot, swaps
from headrace.core.job.machine import JobMachine
from headrace.core.job.rows import Key
from headrace.core.job.state import Phase

if TYPE_CHECKING:
    from testkit.sim.world import World

POINTS = ("before_commit", "after_commit", "mid_effects", "before_send", "after_send")
_WISHES: dict[str, did.Event] = {
    "pause": did.PauseRequested(),
    "resume": did.ResumeRequested(),
    "cancel": did.CancelRequested(),
}


class RunnerCrashed(Exception):
    """The process died at one of POINTS."""


class Runner:
    """One runner under one epoch; it is the store and the effects of its own TurnTaker."""

    def __init__(self, world: "World", epoch: int, repository: Repository) -> None:
        self.world, self.epoch = world, epoch
        self.repository = repository
        self.rng: random.Random = world.rng
        self.is_alive = True
        self.inbox: list[did.Event] = []
        self.is_turn_due = False
        self.point = ""
        self.n_commits = 0
        self.n_effects = 0
        self.last_turn = world.clock.now
        self.n_idle = 0
        self.seen_rewards: set[tuple[Any, ...]] = set()
        self.links: dict[str, Link] = {}
        self.taker: TurnTaker

    # -- coming and going --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        stored = await self.repository.load(self.world.plan)
        machine = JobMachine.fresh(self.world.plan) if stored is None else snapshot.restore(stored)
        machine.check()
        self.taker = TurnTaker(machine, self, self, spec())
        if stored is not None:
            current = machine.state.lineage.current
            for version in {current, *swaps.pinned(machine.state)} - {None}:
                manifest = await self.repository.manifest(version)  # type: ignore[arg-type]
                assert manifest is not None, f"version {version} is needed and has no row"
                self.taker.manifests[version] = manifest  # type: ignore[index]
            await self.taker.send_rewards(await self.repository.unsent())
        else:
            machine.state.totals["started"] = self.world.clock.now
        self.world.connect(self)
        await self.look()
        await self.collect()
        self.world.clock.after(self.world.schedule.tick_s, self.tick)

    def stop(self) -> None:
        self.is_alive = False
        for link in self.links.values():
            link.is_cut = True

    # -- turns -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        return self.taker.machine.state

    def put(self, event: did.Event) -> None:
        if not self.is_alive:
            return
        self.inbox.append(event)
        if not self.is_turn_due:
            self.is_turn_due = True
            self.world.clock.after(self.rng.random() * self.world.schedule.linger_s, self.turn)

    def tick(self) -> Any:
        """An idle runner looks at its deadlines; less often the longer nothing happens."""
        if not self.is_alive:
            return None
        tick_s = self.world.schedule.tick_s
        is_idle = self.world.clock.now - self.last_turn >= tick_s
        self.n_idle = self.n_idle + 1 if is_idle else 0
        self.world.clock.after(tick_s * min(8, 1 << self.n_idle // 4), self.tick)
        return self.turn() if is_idle and not self.is_turn_due else None

    async def turn(self) -> None:
        if not self.is_alive:
            return
        self.is_turn_due, self.last_turn = False, self.world.clock.now
        if self.inbox:
            self.n_idle = 0
        arrived, self.inbox = self.inbox, []
        if not self.point and self.world.happens("crash"):
            self.point = self.rng.choice(POINTS)
        await self.world.take_turn(self, arrived)

    def _crash_at(self, point: str) -> None:
        if self.point == point:
            raise RunnerCrashed(point)

    # -- the TurnTaker's store and effects -----------------------------------------------------------------------------

    async def commit(self, turn: Turn) -> list[int]:
        self._crash_at("before_commit")
        ids = await self.repository.commit(turn)
        self.n_commits += 1
        await self.world.committed(turn)
        self._crash_at("after_commit")
        return ids

    async def perform(self, actions: Sequence[do.Action]) -> None:
        n_performed = self.rng.randint(0, len(actions)) if self.point == "mid_effects" else len(actions)
        for action in actions[:n_performed]:
            self.n_effects += 1
            self.world.perform(self, action)
        self._crash_at("mid_effects")

    async def send_rewards(self, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
        self._crash_at("before_send")
        if self.world.happens("broker_down"):
            return False
        for _, payload in entries:
            self.n_effects += 1
            self.world.graders.grade(payload)
        self._crash_at("after_send")
        return True

    # -- what is looked up --------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """The owner's wish."""
        if not self.is_alive:
            return
        wish = await self.repository.desired()
        if wish is not None and wish != self.taker.answered:
            self.taker.answered = wish
            self.put(_WISHES[wish])

    async def collect(self) -> None:
        """Rewards that were reported."""
        if not self.is_alive:
            return
        waiting = set()
        for row in await self.repository.rewards_of_waiting():
            mark = (row["trajectory_id"], row["attempt"], row["reward_name"], row["try"])
            waiting.add(mark)
            if mark not in self.seen_rewards:
                self.put(reward_event(row))
        self.seen_rewards = waiting

    def hear(self, event: did.Event) -> None:
        """From a peer: a version's manifest is kept before the machine hears of it."""
        match event:
            case (
                did.StatePublished(version, digest) | did.StepFinished(publish_version=version, manifest_digest=digest)
            ):
                self.taker.manifests[version] = StoredManifest(digest.encode(), digest)
        self.put(event)

    def restore_step(self) -> int | None:
        lineage = self.state.lineage
        return None if lineage.current is None else lineage.versions[lineage.current].step

    def is_paused(self) -> bool:
        return self.state.phase in (Phase.PAUSING, Phase.PAUSED)

    def env_ids(self) -> set[str]:
        return {a.env_worker_id for a in self.state.attempts.values() if a.state in ("queued", "running")} - {""}


def reward_event(row: Row) -> did.RewardReported:
    fault = row["fault"]
    return did.RewardReported(
        Key(row["trajectory_id"], row["attempt"]),
        row["reward_name"],
        row["score"] if row["state"] == "scored" else None,
        fault.get("code", ""),
        bool(fault.get("retryable")),
    )
