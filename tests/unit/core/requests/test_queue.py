"""The dispatch queue against a list that is sorted anew at every look."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.requests.queue import DispatchQueue, RequestClass, class_of, rank_of
from headrace.core.requests.record import LogicalRequest, Purpose, RequestState, Sampling

PICK = st.integers(0, 1 << 10)
HOMES = st.sampled_from(["", "w1", "w2", "nowhere"])


class Queue(RuleBasedStateMachine):
    """Requests come, run, come back, and change the place that they wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = DispatchQueue()
        self.requests: list[LogicalRequest] = []

    def waiting(self) -> list[LogicalRequest]:
        return sorted((r for r in self.requests if r.state is RequestState.QUEUED), key=rank_of)

    def any_of(self, requests: list[LogicalRequest], pick: int) -> LogicalRequest | None:
        return requests[pick % len(requests)] if requests else None

    @rule(
        task=st.sampled_from(["lake", "tools"]),
        purpose=st.sampled_from(Purpose),
        turn=st.integers(0, 2),
        prefix_key=st.sampled_from(["", "t/1"]),
        version=st.none() | st.integers(0, 1),
        n_caller_kept=st.integers(0, 1),
        home=HOMES,
    )
    def come(
        self,
        task: str,
        purpose: Purpose,
        turn: int,
        prefix_key: str,
        version: int | None,
        n_caller_kept: int,
        home: str,
    ) -> None:
        arrival = len(self.requests) + 1
        request = LogicalRequest(
            f"r{arrival}", 1, 1, (1,), Sampling(8), task, purpose, turn, prefix_key, version, arrival, 0.0
        )  # fmt: skip
        request.n_caller_kept, request.home = n_caller_kept, home
        self.requests.append(request)
        self.queue.add(request)

    @rule(pick=PICK, to=st.sampled_from([RequestState.PARKED, RequestState.ENDED]))
    def leave(self, pick: int, to: RequestState) -> None:
        if request := self.any_of(self.waiting(), pick):
            request.move(to, "scripted")

    @rule(pick=PICK)
    def come_back(self, pick: int) -> None:
        away = [r for r in self.requests if r.state in (RequestState.PARKED, RequestState.RUNNING)]
        if request := self.any_of(away, pick):
            request.move(RequestState.QUEUED, "scripted")
            self.queue.add(request)

    @rule(pick=PICK, home=HOMES)
    def rehome(self, pick: int, home: str) -> None:
        """Also to where it was: a second entry of the same request."""
        if request := self.any_of(self.waiting(), pick):
            request.home = home
            self.queue.add(request)

    @rule(lanes=st.dictionaries(HOMES, st.integers(0, 3)))
    def drain(self, lanes: dict[str, int]) -> None:
        """So many lanes at each place. Offers come in order, each once; a class is done with its first refusal."""
        expected, left, refused = [], dict(lanes), set[RequestClass]()
        for request in self.waiting():
            if class_of(request) in refused:
                continue
            expected.append(request.request_id)
            if left.get(request.home, 0):
                left[request.home] -= 1
            else:
                refused.add(class_of(request))
        offered: list[str] = []

        def take(request: LogicalRequest) -> bool:
            offered.append(request.request_id)
            if not lanes.get(request.home, 0):
                return False
            lanes[request.home] -= 1
            request.move(RequestState.RUNNING, "scripted")
            request.worker_id = "w"
            request.n_dispatches += 1
            return True

        self.queue.drain(take)
        assert offered == expected

    @invariant()
    def it_holds_what_waits_and_nothing_else(self) -> None:
        assert all(self.queue.holds(request) for request in self.waiting())
        offered: list[LogicalRequest] = []
        self.queue.drain(lambda request: offered.append(request) or False)
        heads = {class_of(request): request for request in reversed(self.waiting())}
        assert {id(request) for request in offered} == {id(request) for request in heads.values()}


Queue.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestQueue = Queue.TestCase
