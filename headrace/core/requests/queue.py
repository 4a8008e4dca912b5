"""Requests that wait for a worker, in the order in which they deserve one.

Order: what has begun (continuations), then evaluation, then training; later turns before earlier ones, since they
hold an environment and a group open; then arrival. Requests that differ only in this order form a class: when its
head finds no worker, none of it would.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from headrace.core.requests.record import LogicalRequest, Purpose, RequestState

RequestClass = tuple[str, bool, int | None, str, bool]
"""(task, is evaluation, pinned version, worker that it is bound to, is of a trajectory)."""

Rank = tuple[int, int, int]


def class_of(request: LogicalRequest) -> RequestClass:
    is_eval = request.purpose is Purpose.EVAL
    return request.task, is_eval, request.pinned_version, request.home, bool(request.prefix_key)


def rank_of(request: LogicalRequest) -> Rank:
    first = 0 if request.is_continuation else 1 if request.purpose is Purpose.EVAL else 2
    return first, -request.turn, request.arrival


class DispatchQueue:
    """A heap per class. An entry is void once its request left QUEUED or was queued anew (another ticket)."""

    def __init__(self) -> None:
        self._classes: dict[RequestClass, list[tuple[Rank, int, LogicalRequest]]] = {}
        self._tickets = 0

    def add(self, request: LogicalRequest) -> None:
        self._tickets += 1
        request.ticket = self._tickets
        heappush(self._classes.setdefault(class_of(request), []), (rank_of(request), self._tickets, request))

    def drain(self, take: Callable[[LogicalRequest], bool]) -> None:
        """Offer requests in order. `take` answers False when nothing fits; the class then waits for the next drain."""
        heads = [(rank, key) for key in list(self._classes) if (rank := self._head_rank(key)) is not None]
        heapify(heads)
        while heads:
            _, key = heappop(heads)
            if not take(self._classes[key][0][2]):
                continue
            rank = self._head_rank(key)
            if rank is not None:
                heappush(heads, (rank, key))

    def holds(self, request: LogicalRequest) -> bool:
        """Whether a valid entry exists; linear, for checks."""
        return any(
            entry is request and ticket == request.ticket
            for _, ticket, entry in self._classes.get(class_of(request), ())
        )

    def _head_rank(self, key: RequestClass) -> Rank | None:
        heap = self._classes[key]
        while heap:
            rank, ticket, request = heap[0]
            if request.state is RequestState.QUEUED and request.ticket == ticket:
                return rank
            heappop(heap)
        del self._classes[key]
        return None
