"""Incarnations of workers: who is wanted, who is connected, and what one coming or going means.

    (unknown) ──named──► CONNECTING ──link opened──► LIVE ──left out──► LEAVING ──drained or lost──► (unknown)
                              ▲                        │
                              └──────link closed───────┘

A worker id is `name@incarnation`. A new incarnation under the same name ends the old one at once; a worker that is
merely left out finishes what it runs. Whoever performs `OpenLink` keeps trying until `CloseLink`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class MemberState(StrEnum):
    CONNECTING = "connecting"
    LIVE = "live"
    LEAVING = "leaving"


TRANSITIONS: Mapping[MemberState, frozenset[MemberState]] = {
    MemberState.CONNECTING: frozenset({MemberState.LIVE}),
    MemberState.LIVE: frozenset({MemberState.CONNECTING, MemberState.LEAVING}),
    MemberState.LEAVING: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Member:
    worker_id: str
    address: str
    pool: str = "default"

    @property
    def name(self) -> str:
        """What stays the same across restarts."""
        return self.worker_id.rpartition("@")[0] or self.worker_id


@dataclass(frozen=True, slots=True)
class MembersNamed:
    """The whole set that is wanted."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class LinkOpened:
    worker_id: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    worker_id: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemberDrained:
    worker_id: str


MembershipEvent = MembersNamed | LinkOpened | LinkClosed | MemberDrained


@dataclass(frozen=True, slots=True)
class OpenLink:
    member: Member


@dataclass(frozen=True, slots=True)
class CloseLink:
    worker_id: str


@dataclass(frozen=True, slots=True)
class AnnounceJoined:
    worker_id: str


@dataclass(frozen=True, slots=True)
class AnnounceLost:
    worker_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class DrainMember:
    """Give it nothing new; `MemberDrained` is due when it runs nothing."""

    worker_id: str


MembershipAction = OpenLink | CloseLink | AnnounceJoined | AnnounceLost | DrainMember


class Membership:
    """`handle` an event, perform the actions in order. A link is open from OpenLink to CloseLink, once a worker."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._states: dict[str, MemberState] = {}

    def handle(self, event: MembershipEvent) -> list[MembershipAction]:
        match event:
            case MembersNamed(members):
                return self._name(members)
            case LinkOpened(worker_id):
                return self._opened(worker_id)
            case LinkClosed(worker_id, detail):
                return self._closed(worker_id, detail)
            case MemberDrained(worker_id):
                return self._drained(worker_id)

    def state(self, worker_id: str) -> MemberState | None:
        return self._states.get(worker_id)

    def check(self) -> None:
        """Raises RuntimeError when two incarnations of one name are both wanted, or a state has no member."""
        if self._members.keys() != self._states.keys():
            raise RuntimeError(f"members {sorted(self._members)} and states {sorted(self._states)} differ")
        names = [
            member.name for member in self._members.values() if self._states[member.worker_id] != MemberState.LEAVING
        ]
        if len(names) != len(set(names)):
            raise RuntimeError(f"two incarnations of one worker: {sorted(self._members)}")

    def _name(self, members: tuple[Member, ...]) -> list[MembershipAction]:
        newest = {member.name: member for member in members}
        wanted = {member.worker_id: member for member in newest.values()}
        actions: list[MembershipAction] = []
        for worker_id, held in list(self._members.items()):
            if wanted.get(worker_id) != held or self._states[worker_id] is MemberState.LEAVING:
                actions += self._leave(worker_id, is_replaced=held.name in newest)
        for worker_id, member in wanted.items():
            if worker_id not in self._members:
                self._members[worker_id] = member
                self._states[worker_id] = MemberState.CONNECTING
                actions.append(OpenLink(member))
        return actions

    def _leave(self, worker_id: str, *, is_replaced: bool) -> list[MembershipAction]:
        state = self._states[worker_id]
        if state is MemberState.CONNECTING:
            return self._forget(worker_id)
        if is_replaced:
            return [*self._forget(worker_id), AnnounceLost(worker_id, "replaced by another incarnation or address")]
        if state is MemberState.LEAVING:
            return []
        self._move(worker_id, MemberState.LEAVING)
        return [DrainMember(worker_id)]

    def _opened(self, worker_id: str) -> list[MembershipAction]:
        if self._states.get(worker_id) is not MemberState.CONNECTING:
            return []
        self._move(worker_id, MemberState.LIVE)
        return [AnnounceJoined(worker_id)]

    def _closed(self, worker_id: str, detail: str) -> list[MembershipAction]:
        state = self._states.get(worker_id)
        if state is MemberState.LIVE:
            self._move(worker_id, MemberState.CONNECTING)
            return [AnnounceLost(worker_id, detail)]
        if state is MemberState.LEAVING:
            return [*self._forget(worker_id), AnnounceLost(worker_id, detail)]
        return []

    def _drained(self, worker_id: str) -> list[MembershipAction]:
        return self._forget(worker_id) if self._states.get(worker_id) is MemberState.LEAVING else []

    def _forget(self, worker_id: str) -> list[MembershipAction]:
        del self._members[worker_id], self._states[worker_id]
        return [CloseLink(worker_id)]

    def _move(self, worker_id: str, state: MemberState) -> None:
        before = self._states[worker_id]
        if state not in TRANSITIONS[before]:
            raise RuntimeError(f"worker {worker_id}: {before} -> {state} is no transition")
        self._states[worker_id] = state
