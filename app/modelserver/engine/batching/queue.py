"""The waiting instances of one model version.

There are no tasks or sockets here: time is an argument, batches are return values, and the queue's owner sets
the one timer that :meth:`BatchQueue.due` asks for. Invariants:

* a batch never has more than ``batch_size`` instances, and all its requests have the same key;
* a request of at most ``batch_size`` instances is sent in one batch; a larger one is cut into full parcels
  and a rest;
* requests of one key are sent in order of arrival; among keys, the one that has waited longest is first;
* a cancelled or ended request leaves nothing behind.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from modelserver.engine.batching.policies import Policy, Waiting
from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.errors import ModelServerError


class UnsharedKey:
    """The key of a request that shares no batch, and so waits for no others."""

    __slots__ = ()


class ImmediateKey(NamedTuple):
    """The key of explanations: they may share a batch, but do not wait for more of them, which are rare, and
    their cost says nothing about other batches.
    """

    key: object


class QueueFull(Exception):
    """There is no room for another request; ``reason`` is ``requests`` or ``bytes``.

    ``error`` is what the client gets, if not the usual 503.
    """

    def __init__(self, reason: str, error: ModelServerError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass(slots=True, eq=False)
class Lane:
    """Parcels of one key, first come first served; ``at_once``: see :class:`ImmediateKey`.

    ``since``: none of its requests has a lower place.
    """

    key: object = None
    at_once: bool = False
    parcels: deque[Parcel] = field(default_factory=deque)
    instances: int = 0
    since: int = 0


class BatchQueue:
    """A bounded queue of requests that returns batches.

    Args:
        batch_size: maximum number of instances in a batch.
        policy: decides when a batch that is not full is sent.
        max_requests: maximum number of waiting requests (``job_queue_size``).
        max_bytes: maximum total size of their bodies.
    """

    def __init__(self, batch_size: int, policy: Policy, max_requests: int, max_bytes: int) -> None:
        self.batch_size = batch_size
        self.policy = policy
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.instances = 0
        self.nbytes = 0
        self.flushing = False
        self._lanes: dict[object, Lane] = {}  # by ``since``
        # The lane that was emptied last, for reuse: under light load each request needs a new one.
        self._spare: Lane | None = None
        self._places = itertools.count()

    def reconfigure(self, batch_size: int, policy: Policy) -> None:
        """Changes how batches are formed."""
        self.batch_size = batch_size
        self.policy = policy

    def __len__(self) -> int:
        return self.requests

    @staticmethod
    def is_at_once(request: Request) -> bool:
        """Whether the request waits for no others; see :class:`ImmediateKey`."""
        return type(request.key) is ImmediateKey

    def put(self, request: Request) -> None:
        """Adds a request; raises :class:`QueueFull`, without having changed anything.

        An empty queue accepts a request even if its body alone exceeds ``max_bytes``.
        """
        if self.requests >= self.max_requests:
            raise QueueFull("requests")
        if self.nbytes + request.nbytes > self.max_bytes and self.requests:
            raise QueueFull("bytes")
        request.place = place = next(self._places)
        lane = self._lanes.get(request.key) or self._add_lane(request.key, place)
        total = len(request.rows)
        # One that is larger than a batch is cut when it is sent: thousands of parcels would wait otherwise.
        lane.parcels.append(Parcel(request, 0, total))
        request.waiting = 1
        lane.instances += total
        self.requests += 1
        self.instances += total
        self.nbytes += request.nbytes
        if not lane.at_once:
            self.policy.arrived(total, request.arrived)

    def put_back(self, batch: Batch) -> None:
        """Puts a batch that no worker began back in its place; ended requests are left out."""
        parcels = [parcel for parcel in batch.parcels if not parcel.request.done]
        if not parcels:
            return
        key, place = parcels[0].request.key, parcels[0].request.place
        lane = self._lanes.get(key) or self._add_lane(key, place)
        for parcel in parcels:
            request = parcel.request
            first = request.waiting == 0
            request.waiting += 1
            lane.instances += parcel.count
            self._count(int(first), parcel.count, request.nbytes if first else 0)
        # Batches of several workers may come back in any order.
        lane.parcels = deque(sorted((*parcels, *lane.parcels), key=_place))
        lane.since = lane.parcels[0].request.place
        if len(self._lanes) > 1:
            self._lanes = dict(sorted(self._lanes.items(), key=lambda item: item[1].since))

    def remove(self, request: Request) -> None:
        if not request.waiting:
            return
        lane = self._lanes[request.key]
        parcels = lane.parcels
        at = bisect_left(parcels, request.place, key=lambda parcel: parcel.request.place)
        while at < len(parcels) and parcels[at].request is request:
            lane.instances -= parcels[at].count
            self.instances -= parcels[at].count
            del parcels[at]
        request.waiting = 0
        self._count(-1, 0, -request.nbytes)
        if not parcels:
            del self._lanes[request.key]

    def all(self) -> list[Request]:
        """The requests that wait, each once."""
        return list(dict.fromkeys(parcel.request for parcel in self._parcels()))

    def _parcels(self) -> Iterable[Parcel]:
        return itertools.chain.from_iterable(lane.parcels for lane in self._lanes.values())

    def drain(self) -> list[Request]:
        """Removes everything; returns the requests that waited, each once."""
        waiting = list(dict.fromkeys(parcel.request for parcel in BatchQueue._parcels(self)))
        for request in waiting:
            self.remove(request)
        return waiting

    def due(self, now: float, idle_workers: int) -> float:
        """The time of the next batch: at most ``now`` if one can be sent, infinity if nothing waits."""
        if not self._lanes:
            return math.inf
        return min(self._due(lane, now, idle_workers) for lane in self._lanes.values())

    def oldest(self) -> float:
        """When the longest waiting request arrived; infinity if nothing waits."""
        return min((lane.parcels[0].request.arrived for lane in self._lanes.values()), default=math.inf)

    def has_full(self) -> bool:
        if self.instances < self.batch_size:
            return False
        others = len(self._lanes) - 1  # which have an instance each at least
        return not others or (
            self.instances >= self.batch_size + others
            and any(lane.instances >= self.batch_size for lane in self._lanes.values())
        )

    def take(self, now: float, idle_workers: int, *, only_full: bool = False) -> Batch | None:
        """The next batch that is due, or None."""
        while True:
            # Of the lanes whose batch is due, the one whose first request has waited longest.
            best: Lane | None = None
            for lane in self._lanes.values():
                if best is not None and best.parcels[0].request.place < lane.since:
                    break
                if lane.instances < self.batch_size and (
                    only_full or self._due(lane, now, idle_workers) > now
                ):
                    continue
                if best is None or lane.parcels[0].request.place < best.parcels[0].request.place:
                    best = lane
            if best is None:
                return None
            batch = self._form(best, now)
            if batch.parcels:
                return batch

    def _due(self, lane: Lane, now: float, idle_workers: int) -> float:
        if self.flushing or lane.instances >= self.batch_size:
            return now
        parcels = lane.parcels
        oldest = parcels[0].request
        waiting = Waiting(lane.instances, oldest.arrived, parcels[-1].request.arrived, idle_workers)
        due = self.policy.due(waiting, now)
        if due <= now:
            return due
        if lane.at_once or isinstance(lane.key, UnsharedKey):
            return now
        # Do not wait past the deadline of one of them.
        deadlines = (parcel.request.deadline for parcel in parcels)
        return now if any(deadline is not None and deadline <= due for deadline in deadlines) else due

    def _form(self, lane: Lane, now: float) -> Batch:
        """A batch of the lane, without the parcels past their deadline, which are removed."""
        reason = self._reason(lane)
        parcels = lane.parcels
        taken: list[Parcel] = []
        room = self.batch_size
        ended = freed = late = 0
        while parcels:
            parcel = parcels[0]
            request, count = parcel.request, parcel.count
            is_late = request.deadline is not None and request.deadline <= now
            if count > room and not is_late:
                if room == self.batch_size:
                    # More than a batch: its first instances.
                    taken.append(Parcel(request, parcel.start, room))
                    parcels[0] = Parcel(request, parcel.start + room, count - room)
                    room = 0
                break
            parcels.popleft()
            request.waiting -= 1
            if request.waiting == 0:
                ended += 1
                freed += request.nbytes
            if is_late:
                late += count
                continue
            room -= count
            taken.append(parcel)
        size = self.batch_size - room
        lane.instances -= size + late
        self.requests -= ended
        self.instances -= size + late
        self.nbytes -= freed
        if not parcels:
            del self._lanes[lane.key]
            self._spare = lane
        return Batch(taken, size, reason, at_once=lane.at_once)

    def _reason(self, lane: Lane) -> str:
        if lane.instances >= self.batch_size:
            return "size"
        if self.flushing:
            return "flush"
        return "delay" if self.policy.name == "window" else "idle"

    def _add_lane(self, key: object, since: int) -> Lane:
        lane, self._spare = self._spare or Lane(), None
        lane.key = key
        lane.since = since
        lane.at_once = type(key) is ImmediateKey
        self._lanes[key] = lane
        return lane

    def _count(self, requests: int, instances: int, nbytes: int) -> None:
        self.requests += requests
        self.instances += instances
        self.nbytes += nbytes


def _place(parcel: Parcel) -> tuple[int, int]:
    return parcel.request.place, parcel.start


# ``useJobTicket``: a request is accepted only if an idle worker can take it at once (reference 8.8).


class TicketQueue(BatchQueue):
    """A queue for requests that wait for nothing but their batch.

    Unlike TorchServe, which accepts one request per idle worker, it accepts requests while the batches of the
    idle workers have room. A request larger than a batch is accepted if nothing else waits.

    Args:
        idle: returns how many workers could take a batch now.
    """

    def __init__(
        self, batch_size: int, policy: Policy, max_requests: int, max_bytes: int, idle: Callable[[], int]
    ) -> None:
        super().__init__(batch_size, policy, max_requests, max_bytes)
        self._idle = idle

    def put(self, request: Request) -> None:
        """Also raises :class:`QueueFull` with the reason ``no_ticket``: no idle worker has room."""
        idle = self._idle()
        size = len(request.rows)
        if size > self.batch_size and not self.requests and idle:
            super().put(request)
            return
        waiting = {key: [parcel.count for parcel in lane.parcels] for key, lane in self._lanes.items()}
        waiting.setdefault(request.key, []).append(size)
        if sum(self._batches(counts) for counts in waiting.values()) > idle:
            raise QueueFull("no_ticket")
        super().put(request)

    def _batches(self, counts: Iterable[int]) -> int:
        """How many batches parcels of these sizes need."""
        batches = room = 0
        for count in counts:
            if count > self.batch_size:
                full, count = divmod(count, self.batch_size)  # noqa: PLW2901 - the rest
                batches, room = batches + full, 0
            if count > room:
                batches, room = batches + 1, self.batch_size
            room -= count
        return batches
