"""Incarnations of workers come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.membership import (
    AnnounceJoined,
    AnnounceLost,
    CloseLink,
    DrainMember,
    LinkClosed,
    LinkOpened,
    Member,
    MemberDrained,
    Membership,
    MembershipAction,
    MembershipEvent,
    MembersNamed,
    MemberState,
    OpenLink,
)

A1, A2, B1 = Member("a@1", "host:1"), Member("a@2", "host:2"), Member("b@1", "host:3", "big")


def live(*members: Member) -> Membership:
    machine = Membership()
    machine.handle(MembersNamed(members))
    for member in members:
        machine.handle(LinkOpened(member.worker_id))
    return machine


def test_a_named_worker_joins_when_its_link_opens() -> None:
    machine = Membership()
    assert machine.handle(MembersNamed((A1, B1))) == [OpenLink(A1), OpenLink(B1)]
    assert machine.handle(LinkOpened("a@1")) == [AnnounceJoined("a@1")]
    assert machine.handle(MembersNamed((A1, B1))) == []
    assert machine.handle(LinkOpened("nobody@1")) == []


def test_a_broken_link_is_a_loss_and_the_worker_may_come_back() -> None:
    machine = live(A1)
    assert machine.handle(LinkClosed("a@1", "reset")) == [AnnounceLost("a@1", "reset")]
    assert machine.handle(LinkClosed("a@1", "again")) == []
    assert machine.handle(LinkOpened("a@1")) == [AnnounceJoined("a@1")]


def test_a_new_incarnation_ends_the_old_one_at_once() -> None:
    machine = live(A1)
    actions = machine.handle(MembersNamed((A2,)))
    assert actions[0] == CloseLink("a@1")
    assert isinstance(actions[1], AnnounceLost)
    assert actions[2] == OpenLink(A2)


def test_a_worker_left_out_drains_and_is_forgotten() -> None:
    machine = live(A1, B1)
    assert machine.handle(MembersNamed((A1,))) == [DrainMember("b@1")]
    assert machine.state("b@1") is MemberState.LEAVING
    assert machine.handle(MemberDrained("b@1")) == [CloseLink("b@1")]
    assert machine.state("b@1") is None
    assert machine.handle(MemberDrained("a@1")) == [], "one that is wanted does not leave"


def test_a_worker_lost_while_it_leaves_is_forgotten() -> None:
    machine = live(A1)
    machine.handle(MembersNamed(()))
    assert machine.handle(LinkClosed("a@1", "gone")) == [CloseLink("a@1"), AnnounceLost("a@1", "gone")]


def test_a_worker_that_moved_is_connected_anew() -> None:
    machine = live(A1)
    moved = Member("a@1", "elsewhere:9")
    actions = machine.handle(MembersNamed((moved,)))
    assert [type(action) for action in actions] == [CloseLink, AnnounceLost, OpenLink]


def test_one_that_never_connected_is_just_dropped() -> None:
    machine = Membership()
    machine.handle(MembersNamed((A1,)))
    assert machine.handle(MembersNamed(())) == [CloseLink("a@1")]


MEMBERS = st.sampled_from([A1, A2, B1, Member("b@1", "host:4"), Member("c@1", "host:5")])
IDS = st.sampled_from(["a@1", "a@2", "b@1", "c@1"])
EVENTS = st.one_of(
    st.builds(MembersNamed, st.lists(MEMBERS, max_size=4).map(tuple)),
    st.builds(LinkOpened, IDS),
    st.builds(LinkClosed, IDS),
    st.builds(MemberDrained, IDS),
)


@given(st.lists(EVENTS, max_size=40))
def test_links_and_announcements_pair_up(events: list[MembershipEvent]) -> None:
    machine = Membership()
    links: set[str] = set()
    joined: set[str] = set()
    for event in events:
        actions: list[MembershipAction] = machine.handle(event)
        machine.check()
        for action in actions:
            match action:
                case OpenLink(member):
                    assert member.worker_id not in links
                    links.add(member.worker_id)
                case CloseLink(worker_id):
                    links.remove(worker_id)
                    if event.__class__ is MemberDrained:
                        joined.discard(worker_id)
                case AnnounceJoined(worker_id):
                    assert worker_id in links and worker_id not in joined
                    joined.add(worker_id)
                case AnnounceLost(worker_id):
                    joined.remove(worker_id)
                case DrainMember(worker_id):
                    assert worker_id in joined
    assert joined <= links


def test_check_tells_two_incarnations_apart() -> None:
    machine = live(A1)
    machine._members["a@2"], machine._states["a@2"] = A2, MemberState.LIVE
    with pytest.raises(RuntimeError, match="two incarnations"):
        machine.check()
