"""The waiting instances of one model version.

Nothing here knows of tasks or sockets: time comes in as an argument, batches go out as return values, and
whoever owns the queue arms the one timer that :meth:`BatchQueue.due` asks for. What holds at every moment:

* a batch never has more than ``batch_size`` instances, and all its requests have the same key;
* a request of at most ``batch_size`` instances travels in one batch; a larger one is cut into full parcels
  and a rest;
* requests of one key leave in the order in which they came; between keys the one that waits longest goes
  first;
* a cancelled or ended request leaves nothing behind.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import NamedTuple

from modelserver.batching.policies import Policy, Waiting
from modelserver.batching.request import Batch, Parcel, Request


class Alone:
    """The key of a request that shares no batch: there is nothing for it to wait for."""

    __slots__ = ()


class AtOnce(NamedTuple):
    """The key of explanations: they may share a batch, but nobody waits for more of them, which are few, and
    what they cost says nothing of other batches.
    """

    key: object


class QueueFull(Exception):
    """No place for another request; ``reason`` is ``requests`` or ``bytes``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Lane:
    """Parcels of one key, first come first served; ``at_once``: see :class:`AtOnce`."""

    __slots__ = ("at_once", "instances", "key", "parcels")

    def __init__(self) -> None:
        self.key: object = None
        self.at_once = False
        self.parcels: deque[Parcel] = deque()
        self.instances = 0


class BatchQueue:
    """A bounded queue that hands out batches.

    Args:
        batch_size: instances of a batch, at most.
        policy: when a batch that is not full goes.
        max_requests: requests that may wait (``job_queue_size``).
        max_bytes: bytes that their bodies may have together.
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
        self._lanes: dict[object, Lane] = {}
        # The lane that was emptied last, to be used again: under light load there is a new one per request.
        self._spare: Lane | None = None
        self._places = itertools.count()

    def reconfigure(self, batch_size: int, policy: Policy) -> None:
        """Batches are formed so from now on; what waits is cut anew where it would be too large."""
        self.batch_size = batch_size
        self.policy = policy
        for lane in self._lanes.values():
            if any(parcel.count > batch_size for parcel in lane.parcels):
                lane.parcels = deque(piece for parcel in lane.parcels for piece in self._cut(parcel))

    def _cut(self, parcel: Parcel) -> list[Parcel]:
        """The parcel, in pieces that fit into a batch."""
        size, end = self.batch_size, parcel.start + parcel.count
        starts = range(parcel.start, end, size)
        parcel.request.waiting += len(starts) - 1
        return [Parcel(parcel.request, start, min(size, end - start)) for start in starts]

    def __len__(self) -> int:
        return self.requests

    def put(self, request: Request) -> None:
        """Raises :class:`QueueFull` when the request finds no place; nothing of it is kept then.

        A single request is taken even when its body alone is over ``max_bytes``: otherwise it never could be.
        """
        if self.requests >= self.max_requests:
            raise QueueFull("requests")
        if self.nbytes + request.nbytes > self.max_bytes and self.requests:
            raise QueueFull("bytes")
        lane = self._lane(request.key)
        request.place = next(self._places)
        total, size = len(request.rows), self.batch_size
        if total <= size:
            lane.parcels.append(Parcel(request, 0, total))
            request.waiting = 1
        else:
            cuts = range(0, total, size)
            lane.parcels.extend(Parcel(request, start, min(size, total - start)) for start in cuts)
            request.waiting = len(cuts)
        lane.instances += total
        self.requests += 1
        self.instances += total
        self.nbytes += request.nbytes
        if not lane.at_once:
            self.policy.arrived(total, request.arrived)

    def put_back(self, batch: Batch) -> None:
        """Puts a batch that no worker began back to where it stood; ended requests are left out."""
        parcels = [parcel for parcel in batch.parcels if not parcel.request.done]
        if not parcels:
            return
        for parcel in parcels:
            if parcel.request.batch_id == batch.id:
                # What is told of a request is the first batch that was begun.
                parcel.request.batch_id = ""
        lane = self._lane(parcels[0].request.key)
        for parcel in parcels:
            request = parcel.request
            first = request.waiting == 0
            request.waiting += 1
            lane.instances += parcel.count
            self._count(int(first), parcel.count, request.nbytes if first else 0)
        # The batch size may have become smaller meanwhile.
        pieces = (piece for parcel in parcels for piece in self._cut(parcel))
        # Batches of several workers may come back in any order.
        lane.parcels = deque(sorted((*pieces, *lane.parcels), key=_place))

    def remove(self, request: Request) -> None:
        """Takes out what of the request still waits."""
        if not request.waiting:
            return
        lane = self._lanes[request.key]
        kept: deque[Parcel] = deque()
        for parcel in lane.parcels:
            if parcel.request is request:
                lane.instances -= parcel.count
                self.instances -= parcel.count
            else:
                kept.append(parcel)
        lane.parcels = kept
        request.waiting = 0
        self._count(-1, 0, -request.nbytes)
        if not kept:
            del self._lanes[request.key]

    def drain(self) -> list[Request]:
        """Takes out everything; returns the requests that waited, each once."""
        waiting = {id(p.request): p.request for lane in self._lanes.values() for p in lane.parcels}
        for request in waiting.values():
            self.remove(request)
        return list(waiting.values())

    def due(self, now: float, idle_workers: int) -> float:
        """The moment of the next batch: not later than ``now`` if one can go, infinity if nothing waits."""
        if not self._lanes:
            return math.inf
        return min(self._due(lane, now, idle_workers) for lane in self._lanes.values())

    def oldest(self) -> float:
        """When the request that waits longest arrived; infinity if nothing waits."""
        return min((lane.parcels[0].request.arrived for lane in self._lanes.values()), default=math.inf)

    def has_full(self) -> bool:
        """Whether a full batch waits."""
        if self.instances < self.batch_size:
            return False
        return len(self._lanes) == 1 or any(
            lane.instances >= self.batch_size for lane in self._lanes.values()
        )

    def take(self, now: float, idle_workers: int, *, only_full: bool = False) -> Batch | None:
        """The next batch that is due, or None."""
        while True:
            # The lane whose batch is due and whose first request waits longest.
            best: Lane | None = None
            for lane in self._lanes.values():
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
        if lane.at_once or isinstance(lane.key, Alone):
            return now
        # Waiting past the deadline of one of them would be waiting for nothing.
        deadlines = (parcel.request.deadline for parcel in parcels)
        return now if any(deadline is not None and deadline <= due for deadline in deadlines) else due

    def _form(self, lane: Lane, now: float) -> Batch:
        """A batch of the lane; what is past its deadline is taken out and in none: its end is being told."""
        reason = self._reason(lane)
        parcels = lane.parcels
        taken: list[Parcel] = []
        room = self.batch_size
        ended = freed = late = 0
        while parcels and parcels[0].count <= room:
            parcel = parcels.popleft()
            request = parcel.request
            request.waiting -= 1
            if request.waiting == 0:
                ended += 1
                freed += request.nbytes
            if request.deadline is not None and request.deadline <= now:
                late += parcel.count
                continue
            room -= parcel.count
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

    def _lane(self, key: object) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane, self._spare = self._spare or Lane(), None
            lane.key = key
            lane.at_once = type(key) is AtOnce
            self._lanes[key] = lane
        return lane

    def _count(self, requests: int, instances: int, nbytes: int) -> None:
        self.requests += requests
        self.instances += instances
        self.nbytes += nbytes


def _place(parcel: Parcel) -> tuple[int, int]:
    return parcel.request.place, parcel.start
