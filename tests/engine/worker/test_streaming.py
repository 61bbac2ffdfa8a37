import gc
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.worker.channels import service_of

from modelserver.engine.wire import messages as wire
from modelserver.engine.worker.streaming import WINDOW, CallStream
from modelserver_handlers.answers import OCTETS, TEXT
from modelserver_handlers.context import BatchState
from modelserver_handlers.streaming import send_intermediate_predict_response


class Bench:
    """A service around a handler, with what it sends; ``arriving`` is what the server says meanwhile."""

    def __init__(self, handler, **load):
        self.sent = []
        self.arriving = []
        self.calls = 0

        def entry(data, context):
            self.calls += 1
            return handler(data, context)

        self.service = service_of(entry, **load)
        self.service.connect(self, lambda: self.arriving)

    def send(self, message, bodies=()):
        self.sent.append((message, list(bodies)))

    def run(self, count, kind=wire.BODY, accept=""):
        """A batch of rows with the bodies 0, 1, …"""
        headers = msgspec.Raw(msgspec.msgpack.encode([(b"Accept", accept.encode())] if accept else []))
        rows = [wire.Row(f"id{i}", 1, kind, headers=headers) for i in range(count)]
        work = self.service.take(wire.Predict(7, rows), memoryview("".join(map(str, range(count))).encode()))
        self.service.run(work)
        return work

    def parts(self):
        result = {}
        for message, bodies in self.sent:
            for row, body in zip(message.rows, bodies, strict=True):
                result.setdefault(row, []).append(body)
        return result


def send(context, *parts):
    send_intermediate_predict_response(list(parts), context.request_ids, "Intermediate", 200, context)


def states():
    """How many calls are remembered anywhere."""
    return sum(type(each) is BatchState for each in gc.get_objects())


def answers(work):
    return [(answer[0].status, answer[0].failed, answer[1]) for answer in work.answers if answer is not None]


@pytest.fixture(autouse=True)
def quiet(capsys):
    """Failures print tracebacks."""


def test_parts_go_out_in_one_message_per_step():
    def handle(data, context):
        context.set_response_status(202, idx=1)
        context.set_response_header(1, "content-type", "text/x")
        send(context, "a0", {"b": 0})
        send(context, "a1", "b1")
        return ["a2", "b2"]

    bench = Bench(handle)
    work = bench.run(2)

    assert [(m.sequences, m.rows) for m, _ in bench.sent] == [([7, 7], [0, 1])] * 2
    assert bench.sent[0][0].answers == [wire.Answer(2, 200, TEXT), wire.Answer(12, 202, "text/x")]
    assert bench.sent[1][0].answers == [wire.Answer(2), wire.Answer(2)]
    assert [content for _, _, content in answers(work)] == [b"a2", b"b2"]
    assert bench.calls == 1


@pytest.mark.parametrize(
    ("accept", "first", "content_type"),
    [
        ("text/event-stream", "data: a\n\n", "text/event-stream"),
        ("text/html, Text/Event-Stream;q=0.9", b": hello\n\n", "text/event-stream"),
        ("text/event-stream", "a", TEXT),
        ("*/*", "data: a\n\n", TEXT),
        ("", b"data: a\n\n", OCTETS),
    ],
)
def test_events_are_named_where_the_client_asks_for_them(accept, first, content_type):
    def handle(data, context):
        send(context, first)
        return ["end"]

    bench = Bench(handle)
    bench.run(1, accept=accept)

    assert bench.sent[0][0].answers[0].content_type == content_type


def test_a_code_is_an_error_of_its_requests():
    def handle(data, context):
        send_intermediate_predict_response(["x"], {1: "id1"}, "no more", 503, context)
        send(context, "a", "b")
        return ["a", "b"]

    bench = Bench(handle)

    assert answers(bench.run(2)) == [(200, False, b"a"), (503, True, b"no more")]
    assert bench.parts() == {0: [b"a"]}


def test_a_part_without_a_form_fails_its_row_alone():
    def handle(data, context):
        send(context, object(), "b", "x" * 11)
        return ["a", "b", "c"]

    bench = Bench(handle, max_response_size=10)
    work = bench.run(3)

    assert bench.parts() == {1: [b"b"]}
    assert [each[:2] for each in answers(work)] == [(503, True), (200, False), (500, True)]


def test_later_parts_of_bytes_go_out_as_they_are_where_nothing_is_to_be_added():
    """Neither too large, nor with the header that ends a sequence, nor an element of a JSON document."""

    def handle(data, context):
        for idx in range(len(data)):
            context.set_response_content_type(idx, "text/x")
        send(context, b"a0", b"b0")
        send(context, b"a1", b"b1")
        context.set_response_header(0, "end", "s1")
        send(context, b"a2", b"x" * 11)
        send(context, b"a3", b"b3")
        return [b"a4", b"b4"]

    names = wire.SequenceHeaders(end="End")
    bench = Bench(handle, max_response_size=10, sequence_headers=names)
    work = bench.run(2)

    assert bench.parts() == {0: [b"a0", b"a1", b"a2", b"a3"], 1: [b"b0", b"b1"]}
    sent = [answer for message, _ in bench.sent for answer in message.answers]
    first, ending = wire.Answer(2, 200, "text/x"), wire.Answer(2, headers=[("end", "s1")])
    assert sent == [first, first, wire.Answer(2), wire.Answer(2), ending, ending]
    assert [(status, failed) for status, failed, _ in answers(work)] == [(200, False), (500, True)]


def test_later_parts_of_instances_are_json():
    def handle(data, context):
        send(context, "a")
        send(context, b"b")
        return ["c"]

    bench = Bench(handle)
    bench.run(1, wire.INSTANCE)

    assert bench.parts() == {0: [b'"a"', b'"b"']}


def test_a_call_that_has_sent_parts_is_not_tried_again():
    def handle(data, context):
        if bench.streams:
            send(context, *"abcd"[: len(data)])
        raise ValueError

    bench = Bench(handle)
    bench.streams = True
    assert [failed for _, failed, _ in answers(bench.run(4))] == [True] * 4
    assert bench.calls == 1
    bench.streams = False
    bench.run(4)
    assert bench.calls == 8


def test_a_call_for_nobody_is_left():
    """When all clients are gone the call ends through its finally blocks, past `except Exception`."""
    passed = []

    def handle(data, context):
        bench.arriving.append(wire.Cancelled(7, [0, 1]))
        try:
            send(context, "a", "b")
        except Exception:  # noqa: BLE001 - as handlers do
            passed.append("except")
        finally:
            passed.append("finally")
        passed.append("after")

    bench = Bench(handle)
    work = bench.run(2)

    assert passed == ["finally"]
    assert (bench.sent, bench.calls) == ([], 1)
    assert [failed for _, failed, _ in answers(work)] == [True, True]


def test_a_call_with_threads_is_let_run():
    """Leaving it would let them compute beside the next batch: it goes on, as in TorchServe."""
    release = threading.Event()

    def handle(data, context):
        thread = threading.Thread(target=release.wait)
        thread.start()
        bench.arriving.append(wire.Cancelled(7, [0]))
        send(context, "a")
        release.set()
        thread.join()
        return ["end"]

    bench = Bench(handle)

    assert answers(bench.run(1))[0][1:] == (False, b"end")


def test_parts_after_the_end_are_dropped():
    saved = []

    def handle(data, context):
        saved.append(context._ms_state)
        return ["end"]

    bench = Bench(handle)
    bench.run(1)
    saved[0].stream.send({0: "late"})

    assert bench.sent == []


def test_nothing_waits_for_the_garbage_collector():
    bench = Bench(lambda data, _: data)
    bench.run(2)
    gc.collect()
    gc.disable()
    try:
        before = states()
        for _ in range(5):
            bench.run(2)
        after = states()
    finally:
        gc.enable()

    assert after == before


def test_cancellations_of_other_batches_are_ignored():
    bench = Bench(lambda data, context: ["a"] * len(data))
    work = bench.run(1)
    bench.service.finish(work, 0.0)
    bench.service.cancel(wire.Cancelled(7, [0]))

    assert work.cancelled == frozenset()


def test_a_call_waits_for_its_clients():
    def handle(data, context):
        for _ in range(5):
            send(context, "x" * (WINDOW // 4), "y" * (WINDOW // 4))
        return ["", ""]

    bench = Bench(handle)
    waits = []
    bench.service.connect(bench, lambda: bench.arriving, lambda: waits.append(len(bench.sent)))
    bench.run(2)

    assert waits == [2, 4]
    assert [message.wait for message, _ in bench.sent] == [False, True, False, True, False]


def two_calls(bench):
    """Two calls of one request each, whose first parts have been sent."""
    calls = []
    for sequence in (1, 2):
        work = bench.service.take(wire.Predict(sequence, [wire.Row("id", 1, wire.BODY)]), memoryview(b"x"))
        stream = bench.service.state(work, [0]).stream
        assert isinstance(stream, CallStream)
        stream.send({0: b"first"})
        calls.append((work, stream))
    bench.sent.clear()
    return calls


def test_further_parts_of_several_calls_are_one_message():
    bench = Bench(lambda data, context: [])
    (_, one), (_, other) = two_calls(bench)
    CallStream.send_together([(one, b"a"), (other, b"bc")])

    assert bench.sent == [(wire.Parts([1, 2], [0, 0], [wire.Answer(1), wire.Answer(2)]), [b"a", b"bc"])]


def test_parts_of_ended_calls_and_clients_that_have_left_are_not_among_them():
    bench = Bench(lambda data, context: [])
    (work, one), (_, other) = two_calls(bench)
    bench.service.cancel(wire.Cancelled(work.sequence, [0]))
    other.close()
    CallStream.send_together([(one, b"a"), (other, b"b")])

    assert bench.sent == []


def test_large_part_is_a_message_of_its_own():
    """Its size is checked, and the call waits for its client where it has sent much."""
    bench = Bench(lambda data, context: [], max_response_size=10_000)
    (_, one), (_, other) = two_calls(bench)
    CallStream.send_together([(one, bytes(5_000)), (other, b"b")])
    CallStream.send_together([(one, bytes(20_000)), (other, b"c")])

    assert [[len(body) for body in bodies] for _, bodies in bench.sent] == [[5_000], [1], [1]]
    assert one.state.rejections.keys() == {0}


def test_generators_take_turns():
    def count(name, turns):
        for turn in range(turns):
            yield f"{name}{turn}"
        return f"{name}!" if turns > 1 else None

    bench = Bench(lambda data, context: [count("a", 3), "plain", count("c", 1)])
    work = bench.run(3)

    assert [m.rows for m, _ in bench.sent] == [[0, 2], [0], [0]]
    assert bench.parts() == {0: [b"a0", b"a1", b"a2"], 2: [b"c0"]}
    assert [content for _, _, content in answers(work)] == [b"a!", b"plain", b""]


def test_a_failing_generator_fails_alone():
    def failing():
        yield "a"
        raise ValueError

    bench = Bench(lambda data, context: [failing(), (part for part in "xyz")])
    work = bench.run(2)

    assert bench.parts() == {0: [b"a"], 1: [b"x", b"y", b"z"]}
    assert [(status, failed) for status, failed, _ in answers(work)] == [(503, True), (200, False)]


@pytest.mark.parametrize("gone", [[0], [0, 1]])
def test_generators_of_clients_that_left_are_closed(gone):
    closed = []

    def parts(name, turns):
        try:
            for turn in range(turns):
                if turn == 3:
                    bench.arriving.append(wire.Cancelled(7, gone))
                yield name
        finally:
            closed.append(name)

    bench = Bench(lambda data, context: [parts("a", 1000), parts("b", 5)])
    bench.run(2)

    assert sorted(closed) == ["a", "b"]
    assert bench.parts()[0] == [b"a"] * 3
    assert bench.parts()[1] == [b"b"] * (3 if gone == [0, 1] else 5)


STEPS = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), max_size=12)


@given(steps=STEPS, leaving=st.dictionaries(st.integers(0, 11), st.integers(0, 3), max_size=3))
def test_every_row_gets_its_parts_in_order(steps, leaving):
    def handle(data, context):
        for step, chosen in enumerate(steps):
            if step in leaving:
                bench.arriving.append(wire.Cancelled(7, [leaving[step]]))
            ids = {idx: f"id{idx}" for idx in range(4) if chosen[idx]}
            send_intermediate_predict_response([f"{idx}.{step}" for idx in range(4)], ids, "", 200, context)
        return [f"{idx}." for idx in range(4)]

    bench = Bench(handle)
    bench.run(4)
    left = {row: step for step, row in sorted(leaving.items(), reverse=True)}
    expected = {
        row: parts
        for row in range(4)
        if (
            parts := [
                f"{row}.{step}".encode()
                for step, chosen in enumerate(steps)
                if chosen[row] and step < left.get(row, len(steps))
            ]
        )
    }

    assert bench.parts() == expected
    assert all(isinstance(message, wire.Parts) for message, _ in bench.sent)
    for message, bodies in bench.sent:
        assert [answer.size for answer in message.answers] == [len(body) for body in bodies]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=wire.Parts) == message
