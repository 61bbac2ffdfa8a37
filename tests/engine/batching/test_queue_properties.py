"""The laws of the queue under random arrivals, answers, deaths, cancellations and deadlines, on a fake clock.

The machine below is a pool reduced to its queue: workers are lists of batches (the first one runs, a second
one is prefetched), the timer asked for by ``due`` is honoured to the instant, and a list models the line of
each key.
"""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modelserver.engine.batching.policies import Adaptive, Greedy, Window
from modelserver.engine.batching.queue import BatchQueue, QueueFull
from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import Answer, Row


@dataclass
class Client:
    number: int
    request: Request
    ends: int = 0
    answered: set[int] = field(default_factory=set)
    cancelled: bool = False


def token(number, position):
    return b"%d:%d" % (number, position)


class Batcher(RuleBasedStateMachine):
    """Every instance is answered once or its request ended, in order and on time; no counter leaks (F24)."""

    MAX_REQUESTS = 14
    MAX_BYTES = 240

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.clients = []
        self.waiting = {}

    @initialize(
        name=st.sampled_from(["window", "greedy", "adaptive"]),
        batch_size=st.integers(1, 6) | st.just(8),
        workers=st.integers(1, 3),
        max_delay=st.sampled_from([0.0, 0.125, 1.0, 4.0]),
    )
    def start(self, name, batch_size, workers, max_delay):
        self.name = name
        self.max_delay = max_delay
        policies = {"window": Window(max_delay), "greedy": Greedy(), "adaptive": Adaptive(max_delay)}
        self.queue = BatchQueue(batch_size, policies[name], self.MAX_REQUESTS, self.MAX_BYTES)
        self.workers = [[] for _ in range(workers)]

    # -- what a pool does

    def idle(self):
        return [worker for worker in self.workers if not worker]

    def pump(self):
        while idle := self.idle():
            batch = self.queue.take(self.now, len(idle))
            if batch is None:
                break
            self.check_batch(batch, only_full=False)
            idle[0].append(batch)
        while not self.idle() and self.queue.has_full():
            room = [worker for worker in self.workers if len(worker) < 2]
            if not room:
                break
            batch = self.queue.take(self.now, 0, only_full=True)
            assert batch is not None
            self.check_batch(batch, only_full=True)
            room[0].append(batch)

    def end(self, client, error):
        self.queue.remove(client.request)
        self.forget(client)
        client.request.fail(error)

    def forget(self, client):
        for key, line in self.waiting.items():
            self.waiting[key] = [instance for instance in line if instance[0] != client.number]

    # -- what must hold of a batch

    def check_batch(self, batch, *, only_full):
        size = self.queue.batch_size
        assert 1 <= batch.size <= size
        assert batch.size == sum(parcel.count for parcel in batch.parcels)
        assert len({parcel.request.key for parcel in batch.parcels}) == 1
        key = batch.parcels[0].request.key
        assert isinstance(key, str)
        taken = [
            (int(parcel.request.id), position)
            for parcel in batch.parcels
            for position in range(parcel.start, parcel.start + parcel.count)
        ]
        line = self.waiting[key]
        assert line[: len(taken)] == taken, "first come, first served"
        self.check_parcels(batch)
        reason_to_go = (
            len(line) >= size
            or self.queue.flushing
            or self.name != "window"
            or self.now >= self.arrived(line[0]) + self.max_delay
            or any(self.presses(instance, line[0]) for instance in line)
        )
        assert reason_to_go, "nothing that is not full leaves before its window ends"
        if only_full:
            assert len(line) >= size
        if len(line) >= size:
            # A batch is not full only if the next request would not have fitted.
            rest = line[len(taken) :]
            following = [i for i in rest if i[0] == rest[0][0]] if rest else []
            assert batch.size == size or batch.size + min(len(following), size) > size
        else:
            assert len(taken) == len(line)
        self.waiting[key] = line[len(taken) :]

    def check_parcels(self, batch):
        for parcel in batch.parcels:
            total = len(parcel.request.rows)
            if total <= self.queue.batch_size:
                assert (parcel.start, parcel.count) == (0, total), "a small request travels whole"
            else:
                assert parcel.start % self.queue.batch_size == 0
                assert parcel.count == min(self.queue.batch_size, total - parcel.start)
        rows, bodies = batch.contents()
        assert len(rows) == len(bodies) == batch.size

    def arrived(self, instance):
        return self.clients[instance[0]].request.arrived

    def presses(self, instance, oldest):
        deadline = self.clients[instance[0]].request.deadline
        return deadline is not None and deadline <= self.arrived(oldest) + self.max_delay

    # -- events

    @rule(
        count=st.just(1) | st.integers(1, 4) | st.integers(1, 19),
        key=st.sampled_from("aaabc"),
        size=st.integers(0, 9),
        patience=st.none() | st.sampled_from([0.0625, 0.5, 3.0]),
    )
    def arrive(self, count, key, size, patience):
        number = len(self.clients)
        rows = [Row(str(number), size) for _ in range(count)]
        deadline = None if patience is None else self.now + patience
        request = Request(str(number), rows, [b"x" * size] * count, self.now, key=key, deadline=deadline)
        client = Client(number, request)

        def on_done(_):
            client.ends += 1

        request.on_done = on_done
        before = self.snapshot()
        try:
            self.queue.put(request)
        except QueueFull as full:
            requests, _, nbytes = before[:3]
            if full.reason == "requests":
                assert requests >= self.MAX_REQUESTS
            else:
                assert requests
                assert nbytes + request.nbytes > self.MAX_BYTES
            assert self.snapshot() == before
            assert request.waiting == 0
            return
        self.clients.append(client)
        self.waiting.setdefault(key, []).extend((number, position) for position in range(count))
        self.pump()

    def snapshot(self):
        queue = self.queue
        return queue.requests, queue.instances, queue.nbytes, queue.due(self.now, 1)

    @rule(seconds=st.sampled_from([0.0078125, 0.03125, 0.125, 0.5, 2.0]))
    def pass_time(self, seconds):
        """Moves the clock, and stops at each time that the queue or a deadline sets."""
        until = self.now + seconds
        while (event := min(self.timer(), self.next_deadline())) <= until:
            self.now = max(self.now, event)
            self.pump()
            for client in self.clients:
                deadline = client.request.deadline
                if deadline is not None and deadline <= self.now and not client.request.done:
                    assert not self.idle() or not client.request.waiting, "expired though a worker was free"
                    self.end(client, TimeoutError())
            self.pump()
        self.now = until
        self.pump()

    def timer(self):
        return self.queue.due(self.now, len(self.idle())) if self.idle() else math.inf

    def next_deadline(self):
        open_ones = (c.request for c in self.clients if not c.request.done)
        return min((r.deadline for r in open_ones if r.deadline is not None), default=math.inf)

    @precondition(lambda self: any(self.workers))
    @rule(which=st.integers(0, 2))
    def answer(self, which):
        busy = [worker for worker in self.workers if worker]
        batch = busy[which % len(busy)].pop(0)
        # A fixed cost worth sharing, so that adaptive holds.
        self.queue.policy.finished(batch.size, 0.5 + 0.01 * batch.size, self.now)
        self.pump()
        for parcel in batch.parcels:
            client = self.clients[int(parcel.request.id)]
            positions = range(parcel.start, parcel.start + parcel.count)
            assert client.answered.isdisjoint(positions), "an instance is computed for one answer"
            client.answered.update(positions)
            contents = [token(client.number, position) for position in positions]
            parcel.request.deliver(parcel.start, [(Answer(len(c)), c) for c in contents])

    @precondition(lambda self: any(self.workers))
    @rule()
    def answer_all(self):
        """Back to idle workers, with what is held waiting."""
        while any(self.workers):
            self.answer(0)

    @precondition(lambda self: any(self.workers))
    @rule(which=st.integers(0, 2), running_too=st.booleans())
    def die(self, which, running_too):
        """A process ends: what it had not begun goes back, what ran is lost (if it ran)."""
        busy = [worker for worker in self.workers if worker]
        worker = busy[which % len(busy)]
        batches = worker.copy()
        worker.clear()
        back = batches if running_too else batches[1:]
        for batch in reversed(back):
            self.put_back(batch)
        if not running_too:
            for parcel in batches[0].parcels:
                self.end(self.clients[int(parcel.request.id)], RuntimeError("Worker died."))
        self.pump()

    def put_back(self, batch):
        self.queue.put_back(batch)
        for parcel in batch.parcels:
            if not parcel.request.done:
                number, key = int(parcel.request.id), str(parcel.request.key)
                self.waiting[key] += [(number, parcel.start + i) for i in range(parcel.count)]
                self.waiting[key].sort()

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 1000))
    def cancel(self, which):
        client = self.clients[which % len(self.clients)]
        if not client.request.done:
            client.cancelled = True
            self.queue.remove(client.request)
            self.forget(client)
            client.request.on_done = None
            client.request.fail(ConnectionError())
            self.pump()

    # -- what must hold always

    @invariant()
    def counters_tell_what_waits(self):
        if not hasattr(self, "queue"):
            return
        numbers = {number for line in self.waiting.values() for number, _ in line}
        assert self.queue.requests == len(self.queue) == len(numbers)
        assert self.queue.instances == sum(map(len, self.waiting.values()))
        assert self.queue.nbytes == sum(self.clients[number].request.nbytes for number in numbers)

    @invariant()
    def nothing_due_is_held_from_an_idle_worker(self):
        if not hasattr(self, "queue") or not self.idle():
            return
        for line in self.waiting.values():
            if line:
                assert self.name != "greedy"
                assert len(line) < self.queue.batch_size
                assert self.now < self.arrived(line[0]) + self.max_delay
        assert self.queue.due(self.now, len(self.idle())) > self.now

    @invariant()
    def requests_end_once(self):
        for client in self.clients:
            assert client.ends == (client.request.done and not client.cancelled)

    def teardown(self):
        if not hasattr(self, "queue"):
            return
        self.queue.flushing = True
        self.pump()
        while any(self.workers):
            self.answer(0)
        assert self.snapshot() == (0, 0, 0, math.inf)
        for client in self.clients:
            request = client.request
            assert request.done
            assert client.ends == (not client.cancelled)
            if request.error is None:
                expected = [token(client.number, i) for i in range(len(request.rows))]
                assert [a[1] for a in request.answers if a is not None] == expected


def effort(examples):
    """The number of runs of 50 events."""
    return settings(
        max_examples=examples, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
    )


class TestBatcher(Batcher.TestCase):
    """The laws above hold after any events in any order."""

    settings = effort(30)


@pytest.mark.slow  # thousands of events
class TestBatcherAtLength(Batcher.TestCase):
    """They hold in many more runs, too."""

    settings = effort(150)
