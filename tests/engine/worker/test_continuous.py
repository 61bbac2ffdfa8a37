import os
import socket
import threading

import pytest
from tests.engine.worker.channels import Connection, service_of

from modelserver.engine.wire import messages as wire
from modelserver.engine.wire.frames import encode
from modelserver.engine.worker.continuous import ContinuousBatch
from modelserver_handlers.streaming import send_intermediate_predict_response

PATIENCE = 10.0


class Bench(Connection):
    """A continuous batch in a thread; what a handler does to it can depend on the number of the call."""

    def __init__(self, handle):
        super().__init__()
        self.server.settimeout(PATIENCE)
        self.calls = []

        def entry(data, context):
            self.calls.append((list((context.request_ids or {}).values()), data))
            return handle(data, context)

        service = service_of(entry, 4, mode=wire.CONTINUOUS)
        service.connect(self.channel, self.channel.look)
        self.thread = threading.Thread(target=ContinuousBatch(service, self.channel).serve)

    def start(self):
        self.thread.start()
        return self

    def finish(self):
        """Says stop, and returns all that came until the worker had left."""
        self.send(wire.Stop())
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.end.close()
        while data := self.server.recv(1 << 16):
            self.take(data)
        return [summary(*item) for item in self.received]

    def receive(self):
        while not self.received:
            self.take(self.server.recv(1 << 16))
        return self.received.pop(0)


def summary(message, tail):
    if isinstance(message, wire.Parts):
        return "part", message.sequences[0], tail
    if isinstance(message, wire.Result):
        (answer,) = message.answers
        return "failed" if answer.failed else "end", message.sequence, tail
    return (message,)


@pytest.fixture
def bench(capsys):
    """Makes benches whose ends are closed after the test."""
    made = []

    def make(handle):
        made.append(Bench(handle))
        return made[-1]

    yield make
    for each in made:
        each.server.close()
        if each.thread.ident is not None:
            each.thread.join(PATIENCE)
        each.end.close()


def counting(turns):
    """Each request has so many turns; its parts are numbered."""
    taken = {}

    def handle(data, context):
        ids = list((context.request_ids or {}).values())
        for name in ids:
            taken[name] = taken.get(name, 0) + 1
        context.stopping_criteria = [lambda _, name=name: taken[name] >= turns[name] for name in ids]
        return [f"{name}{taken[name]}" for name in ids]

    return handle


def changed(bench, turns, change):
    """Counts like :func:`counting`, and does this in the second call; all but "new" are there at once."""
    count = counting(turns)

    def handle(data, context):
        if len(made.calls) == 2:
            change(made, context)
        return count(data, context)

    made = bench(handle)
    for sequence, name in enumerate(turns):
        if name != "new":
            made.ask(sequence, name)
    return made.start()


def test_requests_of_different_lengths_end_apart(bench):
    made = bench(counting({"a": 3, "b": 1, "c": 2}))
    for sequence, name in enumerate("abc"):
        made.ask(sequence, name)
    result = made.start().finish()

    assert made.calls == [(["a", "b", "c"], [{"body": 1}] * 3), (["a", "c"], [{}, {}]), (["a"], [{}])]
    assert result == [
        ("part", 0, b"a1"),
        ("end", 1, b"b1"),
        ("part", 2, b"c1"),
        ("part", 0, b"a2"),
        ("end", 2, b"c2"),
        ("end", 0, b"a3"),
    ]


def test_requests_join_between_calls(bench):
    made = changed(bench, {"a": 4, "new": 1}, lambda made, _: made.ask(1, "new"))
    made.finish()

    assert [names for names, _ in made.calls] == [["a"], ["a"], ["a", "new"], ["a"]]


def test_without_criteria_each_answer_is_the_only_one(bench):
    criteria = [None, [lambda _: True], [None, None], [lambda _: None] * 2]

    def handle(data, context):
        context.stopping_criteria = criteria[len(made.calls) - 1]
        return ["x"] * len(data)

    made = bench(handle).start()
    for number in range(4):
        made.ask(number, "a")
        message, tail = made.receive()
        assert summary(message, tail) == ("end", number, b"x")
    made.finish()


def test_a_failing_call_ends_all_that_took_part(bench):
    def handle(data, context):
        context.stopping_criteria = None
        names, _ = made.calls[-1]
        if names == ["c"]:
            return "no list"
        if names == ["d", "e"]:
            context.stopping_criteria = [lambda _: True, lambda _: 1 // 0]
            return ["x", "y"]
        raise ValueError

    made = bench(handle)
    made.ask(0, "a")
    made.ask(1, "b")
    made.start()
    result = [summary(*made.receive())]
    result.append(summary(*made.receive()))
    made.ask(2, "c")
    result.append(summary(*made.receive()))
    both = [encode(wire.Predict(n, [wire.Row(name, 0)])) for n, name in ((3, "d"), (4, "e"))]
    made.server.sendall(b"".join(b"".join(pieces) for pieces in both))
    result += made.finish()

    assert result[:2] == [("failed", 0, b"Prediction failed"), ("failed", 1, b"Prediction failed")]
    assert result[2] == ("failed", 2, b"Invalid model predict output")
    assert result[3:] == [("end", 3, b"x"), ("failed", 4, b"Prediction failed")]


def test_a_broken_gpu_fails_all_that_took_part(bench, gpus, monkeypatch):
    """All are answered, then the process ends (F75)."""
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)

    def handle(data, context):
        gpus.fail()
        gpus.launch()

    made = bench(handle)
    made.ask(0, "a")
    made.ask(1, "b")
    made.start()
    broken, _ = made.receive()
    result = [summary(*made.receive()), summary(*made.receive())]
    made.thread.join(PATIENCE)

    assert isinstance(broken, wire.Broken)
    assert result == [("failed", 0, wire.GPU_BROKEN.encode()), ("failed", 1, wire.GPU_BROKEN.encode())]
    assert ends == [1]


def test_headers_stay_from_call_to_call(bench):
    seen = []

    def handle(data, context):
        if len(made.calls) == 1:
            context.set_response_header(1, "x-b", "B")
            context.set_response_status(202, idx=1)
        position = 1 if len(data) == 2 else 0
        seen.append(context.get_response_headers(position))
        return count(data, context)

    count = counting({"a": 1, "b": 2})
    made = bench(handle)
    made.ask(0, "a")
    made.ask(1, "b")
    made.start()
    messages = [made.receive()[0]]
    made.finish()

    assert seen == [{"x-b": "B"}] * 2
    assert messages


def test_parts_are_sent_within_a_call(bench):
    def handle(data, context):
        send_intermediate_predict_response(["x"] * len(data), context.request_ids, "", 200, context)
        if len(made.calls) == 2:
            made.send(wire.Cancelled(0, [0]))
            send_intermediate_predict_response(["y"], context.request_ids, "", 200, context)
            raise AssertionError("nobody waits")
        return count(data, context)

    count = counting({"a": 3})
    made = bench(handle)
    made.ask(0, "a")

    parts = [("part", 0, text) for text in (b"x", b"a1", b"x")]
    assert made.start().finish() == [*parts, ("failed", 0, b"")]


def test_unreadable_bodies_are_refused(bench):
    made = bench(counting({}))
    made.ask(0, "a", content_type="multipart/form-data")
    ((kind, sequence, _),) = made.start().finish()

    assert (kind, sequence, made.calls) == ("failed", 0, [])


def test_pings_are_answered_between_calls(bench):
    turn = counting({"a": 10**9})
    closed = threading.Event()

    def handle(data, context):
        # Nobody reads the parts after the pong: they must not fill the socket.
        if len(made.calls) > 3:
            assert closed.wait(PATIENCE)
        return turn(data, context)

    made = bench(handle)
    made.ask(0, "a")
    made.send(wire.Ping())
    made.start()
    while made.receive()[0] != wire.Pong():
        pass
    made.server.shutdown(socket.SHUT_WR)
    closed.set()
    made.thread.join(PATIENCE)

    assert not made.thread.is_alive()


def test_rejected_requests_end_with_their_error(bench):
    result = changed(bench, {"a": 5, "b": 3}, lambda _, context: context.reject(0, "too long", 413)).finish()

    assert ("failed", 0, b"too long") in result
    assert result[-1] == ("end", 1, b"b3")


def test_descriptions_are_answered_between_calls(bench):
    def handle(data, context):
        if context.get_request_header(0, "describe") == "True":
            return ["described"]
        return count(data, context)

    count = counting({"a": 2})
    made = bench(handle)
    made.ask(0, "a")
    made.send(wire.Predict(1, [wire.Row("d", 0, wire.DESCRIBE)]))

    assert made.start().finish() == [("end", 1, b"described"), ("part", 0, b"a1"), ("end", 0, b"a2")]
    assert [names for names, _ in made.calls] == [["d"], ["a"], ["a"]]


def test_ids_are_unique(bench):
    seen = []

    def handle(data, context):
        seen.append(list((context.request_ids or {}).values()))
        context.stopping_criteria = [lambda _: len(seen) == 2] * len(data)
        return ["x"] * len(data)

    made = bench(handle)
    for sequence in range(3):
        made.ask(sequence, "same")
    made.start().finish()

    assert seen == [["same", "same-1", "same-2"]] * 2
