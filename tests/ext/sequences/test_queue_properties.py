"""The laws of sequences under random requests, answers, deaths, leavings and ends, on a fake clock.

The machine below is a pool reduced to its queue: a worker is the batch that it runs, or None, and every timer
is honoured to the instant. Beside it stands what every client saw.
"""

import math
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modelserver.engine.batching.queue import QueueFull
from modelserver.engine.batching.request import Batch, SequencedRequest, SequenceMark
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import Answer, Row, SequenceHeaders
from modelserver.ext.sequences.queue import SequenceLimits, SequenceLost, SequenceQueue

NAMES = "abcdef"


@dataclass
class Client:
    request: SequencedRequest
    ends: list[str] = field(default_factory=list)
    steps: int = 0


class Sequences(RuleBasedStateMachine):
    """Every request ends once; order, stickiness and bounds hold; no counter leaks."""

    MAX_BYTES = 60

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.clients: dict[str, Client] = {}
        # Number, worker and last request of each sequence that has begun.
        self.homes: dict[str, tuple[int, int]] = {}
        self.births = dict.fromkeys(NAMES, 0)
        self.last = dict.fromkeys(NAMES, -1)
        self.lost: dict[str, float] = {}

    @initialize(
        name=st.sampled_from(["window", "greedy", "adaptive"]),
        batch_size=st.integers(1, 4),
        workers=st.integers(1, 3),
        max_sequences=st.integers(1, 6),
        max_waiting=st.integers(1, 3),
        max_age=st.sampled_from([3.0, math.inf]),
    )
    def start(self, name, batch_size, workers, max_sequences, max_waiting, max_age):
        self.limits = SequenceLimits(1.0, max_age, max_sequences, max_waiting)
        pool = PoolLimits(batch_size, name, 0.5, 10, self.MAX_BYTES)
        self.queue = SequenceQueue(pool, self.limits, SequenceHeaders())
        self.workers: list[Batch | None] = [None] * workers
        self.loaded = [True] * workers

    # -- what a pool does

    def pump(self):
        self.refuse(self.queue.expire(self.now))
        ready = [worker for worker, loaded in enumerate(self.loaded) if loaded]
        self.queue.place(ready, len(self.workers))
        for worker in ready:
            if self.workers[worker] is None:
                batch = self.queue.take_for(worker, self.now)
                if batch is not None:
                    self.check_batch(worker, batch)
                    self.workers[worker] = batch

    def refuse(self, requests):
        for request in requests:
            assert request.waiting == 0
            self.queue.remove(request)
            request.fail(LookupError())

    def done(self, request):
        client = self.clients[request.id]
        client.ends.append("answered" if request.error is None else type(request.error).__name__)

    def running(self):
        return [
            parcel.request.mark.id
            for batch in self.workers
            if batch is not None
            for parcel in batch.parcels
            if isinstance(parcel.request, SequencedRequest)
        ]

    # -- what must hold of a batch

    def check_batch(self, worker, batch):
        assert 1 <= batch.size == len(batch.parcels) <= self.queue.batch_size
        assert len({parcel.request.key for parcel in batch.parcels}) == 1
        ids = []
        for parcel in batch.parcels:
            request = parcel.request
            assert isinstance(request, SequencedRequest)
            name = request.mark.id
            ids.append(name)
            assert not request.done, "nothing that ended is computed"
            assert request.deadline is None or request.deadline > self.now, "nothing that is late is computed"
            assert name not in self.running(), "one step of a sequence at a time"
            client = self.clients[request.id]
            assert (parcel.start, parcel.count) == (client.steps, 1), "the rows of a request are in order"
            client.steps += 1
            place = int(request.id)
            assert place >= self.last[name], "the requests of a sequence are in order"
            self.last[name] = place
            birth = self.births[name]
            home = self.homes.get(name)
            if home is not None and home[0] == birth:
                assert home[1] == worker, "a sequence stays with its worker"
            self.homes[name] = birth, worker
        assert len(set(ids)) == len(ids), "a batch has one step of a sequence"

    # -- what happens

    @rule(
        name=st.sampled_from(NAMES),
        rows=st.integers(1, 3),
        key=st.sampled_from(["predict", "predict", "explain"]),
        starts=st.booleans(),
        ends=st.sampled_from([False, False, False, True]),
        size=st.integers(0, 12),
        deadline=st.sampled_from([None, None, 0.25]),
    )
    def ask(self, name, rows, key, starts, ends, size, deadline):
        self.refuse(self.queue.expire(self.now))
        request = SequencedRequest(
            str(len(self.clients)),
            [Row(name, size)] * rows,
            [b"x" * size] * rows,
            self.now,
            mark=SequenceMark(name, starts, ends),
            key=key,
            deadline=None if deadline is None else self.now + deadline,
            on_done=self.done,
        )
        lived = request.mark.id in self.queue.lines
        before = self.queue.requests, self.queue.instances, self.queue.nbytes, len(self.queue.lines)
        try:
            self.queue.put(request)
        except SequenceLost:
            assert not lived
            assert not starts
            assert self.now < self.lost[name], "a lost id is not refused for ever"
        except QueueFull:
            pass
        else:
            assert request.is_first is not lived
            assert lived or starts or self.now >= self.lost.get(name, -math.inf), "no silent new beginning"
            self.births[name] += request.is_first
            self.lost.pop(name, None)
            self.clients[request.id] = Client(request)
            self.pump()
            return
        assert request.waiting == 0
        assert before == (self.queue.requests, self.queue.instances, self.queue.nbytes, len(self.queue.lines))

    @precondition(lambda self: any(self.workers))
    @rule(which=st.integers(0, 2), ended=st.sets(st.sampled_from(NAMES), max_size=1))
    def answer(self, which, ended):
        """A worker answers, and its handler may end sequences."""
        busy = [worker for worker, batch in enumerate(self.workers) if batch is not None]
        worker = busy[which % len(busy)]
        batch = self.workers[worker]
        self.workers[worker] = None
        self.queue.policy.finished(batch.size, 0.1, self.now)
        self.refuse(self.queue.finish(batch, self.now))
        assert self.queue.finish(batch, self.now) == []
        self.refuse(self.queue.end(worker, sorted(ended)))
        self.pump()
        for parcel in batch.parcels:
            parcel.request.deliver(parcel.start, [(Answer(0), b"")])

    @rule(which=st.integers(0, 2))
    def die(self, which):
        worker = which % len(self.workers)
        running, self.workers[worker] = self.workers[worker], None
        self.loaded[worker] = False
        lost = {
            name
            for name, home in self.homes.items()
            if home == (self.births[name], worker) and name in self.queue.lines
        }
        self.refuse(self.queue.lose(worker, self.now))
        for name in lost:
            assert name not in self.queue.lines, "the state is gone"
            self.lost[name] = self.now + self.limits.max_idle
        if running is not None:
            assert self.queue.finish(running, self.now) == []
            for parcel in running.parcels:
                self.queue.remove(parcel.request)
                parcel.request.fail(ConnectionError())
        self.pump()

    def named(self, name):
        return SequencedRequest("", [], [], 0.0, mark=SequenceMark(name))

    @rule(which=st.integers(0, 2))
    def load(self, which):
        self.loaded[which % len(self.workers)] = True
        self.pump()

    @precondition(lambda self: any(not client.request.done for client in self.clients.values()))
    @rule(which=st.integers(0, 50))
    def leave(self, which):
        open_ones = [client for client in self.clients.values() if not client.request.done]
        request = open_ones[which % len(open_ones)].request
        self.queue.remove(request)
        request.fail(BrokenPipeError())
        self.pump()

    @rule(seconds=st.sampled_from([0.0078125, 0.125, 0.5, 1.0, 4.0]))
    def pass_time(self, seconds):
        """Moves the clock, and stops at each time that the queue or a deadline sets."""
        until = self.now + seconds
        while (event := min(self.timer(), self.next_deadline())) <= until:
            self.now = max(self.now, event)
            self.pump()
            for client in self.clients.values():
                deadline = client.request.deadline
                if deadline is not None and deadline <= self.now and not client.request.done:
                    self.queue.remove(client.request)
                    client.request.fail(TimeoutError())
            self.pump()
        self.now = until
        self.pump()

    def timer(self):
        idle = [w for w, batch in enumerate(self.workers) if batch is None and self.loaded[w]]
        return min([self.queue.next_end(), *(self.queue.due_at(worker, self.now) for worker in idle)])

    def next_deadline(self):
        open_ones = (client.request for client in self.clients.values() if not client.request.done)
        return min((r.deadline for r in open_ones if r.deadline is not None), default=math.inf)

    # -- what always holds

    @invariant()
    def every_request_ends_once(self):
        for client in self.clients.values():
            assert len(client.ends) == client.request.done

    @invariant()
    def bounds(self):
        if not hasattr(self, "queue"):
            return
        waiting = [c.request for c in self.clients.values() if c.request.waiting]
        assert all(not request.done for request in waiting)
        assert self.queue.requests == len(waiting)
        assert self.queue.instances == sum(request.waiting for request in waiting)
        assert self.queue.nbytes == sum(request.nbytes for request in waiting)
        for name in NAMES:
            assert sum(request.mark.id == name for request in waiting) <= self.limits.max_waiting
        lines = self.queue.lines.values()
        assert len(lines) <= self.limits.max_sequences
        assert sum(line.waiting for line in lines) == len(waiting)

    @invariant()
    def nothing_is_forgotten(self):
        """At an idle worker steps wait only while the policy holds them."""
        if not hasattr(self, "queue"):
            return
        for worker, batch in enumerate(self.workers):
            if batch is None and self.loaded[worker]:
                assert self.queue.due_at(worker, self.now) > self.now

    def teardown(self):
        """With workers that answer, everything ends, and every sequence with time."""
        if not hasattr(self, "queue"):
            return
        self.loaded = [True] * len(self.workers)
        for _ in range(400):
            self.pass_time(1.0)
            while any(self.workers):
                self.answer(0, set())
            if not self.queue.requests:
                break
        assert all(client.request.done for client in self.clients.values())
        self.pass_time(4.0)
        assert not self.queue.lines
        assert (self.queue.requests, self.queue.instances, self.queue.nbytes) == (0, 0, 0)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
