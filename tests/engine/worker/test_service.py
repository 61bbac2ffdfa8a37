import gc
import json
import math
import uuid
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.worker.channels import Channel, service_of
from tests.simulated_gpu import GIB, cuda_error

from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder
from modelserver.engine.wire.messages import (
    BODY,
    DESCRIBE,
    GPU_BROKEN,
    INSTANCE,
    Answer,
    Broken,
    Fitting,
    Parts,
    Predict,
    Result,
    Row,
)
from modelserver.engine.worker import service as service_module
from modelserver_handlers.answers import OCTETS, TEXT
from modelserver_handlers.errors import PredictionException


class Bench:
    """A service around a handler that counts its calls."""

    def __init__(self, handler, batch_size=8, **load):
        self.calls = []

        def entry(data, context):
            self.calls.append(len(data))
            return handler(data, context)

        self.service = service_of(entry, batch_size, **load)

    def run(self, bodies, kind=BODY, **row):
        """The answers as the server reads them from the wire."""
        rows = [Row(f"id{i}", len(body), kind, **row) for i, body in enumerate(bodies)]
        work = self.service.take(Predict(7, rows), memoryview(b"".join(bodies)))
        self.service.run(work)
        stream = b"".join(encode(*self.service.finish(work, 0.5)))
        ((message, tail),) = FrameReader(to_server_decoder).feed(stream)
        assert isinstance(message, Result)
        assert len(message.answers) == len(bodies), "one answer per row, whatever happens"
        self.message = message
        contents, position = [], 0
        for answer in message.answers:
            contents.append(bytes(tail[position : position + answer.size]))
            position += answer.size
        return list(zip(message.answers, contents, strict=True))

    def statuses(self, bodies, kind=BODY):
        return [answer.status for answer, _ in self.run(bodies, kind)]


def connected(handler, **options):
    """A bench whose service sends to a channel."""
    bench, channel = Bench(handler, **options), Channel()
    bench.service.connect(channel)
    return bench, channel


def echo(data, context):
    return [bytes(row["body"]) for row in data]


def raising(error):
    """Fails, whatever it is given."""

    def handler(data, context):
        raise error

    return handler


def poisoned(data, context):
    """Fails as a real handler does: as soon as it meets a bad row."""
    if any(row["body"] == b"poison" or row["body"] == "poison" for row in data):
        raise ValueError("bad row")
    return [bytes(row["body"]) if isinstance(row["body"], bytearray) else row["body"] for row in data]


def failures(answers):
    return [i for i, (answer, _) in enumerate(answers) if answer.failed]


def octets(size):
    return Answer(size, 200, OCTETS)


@pytest.fixture(autouse=True)
def quiet(capsys):
    """Failures print tracebacks; the tests that look at them ask for them."""


def test_a_handler_may_turn_decoding_off(monkeypatch):
    """The environment is read at each batch: handlers set the variable while they are imported."""
    bench = Bench(lambda data, context: [type(row["body"]).__name__ for row in data])
    types = []
    for value in ("false", "true"):
        monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", value)
        types += [content for _, content in bench.run([b"{}"], content_type="application/json")]

    assert types == [b"bytearray", b"dict"]


@given(st.integers(1, 40))
def test_no_answer_reaches_another_request(count):
    """Unique tokens come back where they were sent from (F23); the result names its batch."""
    tokens = [str(uuid.uuid4()).encode() for _ in range(count)]
    bench = Bench(echo, count)

    assert bench.run(tokens) == [(octets(36), token) for token in tokens]
    assert (bench.message.sequence, bench.message.handler_time, bench.message.calls) == (7, 0.5, 1)
    assert bench.message.metrics is None


def test_answers_have_the_form_of_their_protocol():
    bench = Bench(lambda data, context: ["text"] * len(data))
    untyped = Bench(lambda data, context: ["text", b"bytes", [1]], types=False)

    assert bench.run([b"1"], INSTANCE) == [(Answer(6, 200, "application/json"), b'"text"')]
    assert bench.run([b"1"], BODY) == [(Answer(4, 200, TEXT), b"text")]
    assert [answer.content_type for answer, _ in untyped.run([b""] * 3)] == ["", "", "application/json"]


def test_parameters_reach_the_handler():
    """What is beside the instances of a V1 body reaches each row; what is no JSON is a bad request (F2)."""
    bench = Bench(lambda data, context: [context.get_request_parameters(i) for i in range(len(data))])
    answers = bench.run([b"1", b"2"], INSTANCE, extra=b'{"parameters":{"k":3}}')
    calls = len(bench.calls)
    ((refused, _),) = bench.run([b"1"], INSTANCE, extra=b'{"a":"\xff"}')

    assert [json.loads(content) for _, content in answers] == [{"parameters": {"k": 3}}] * 2
    assert (refused.status, refused.error_type) == (400, "BadRequestException")
    assert len(bench.calls) == calls


def test_handler_may_take_its_rows_apart():
    """What a failed call did to its rows is not seen by the calls that follow (F18)."""

    def handler(data, context):
        bodies = [row.pop("body") for row in data]
        if b"poison" in bodies:
            raise ValueError("bad row")
        return [bytes(body) for body in bodies]

    answers = Bench(handler).run([b"a", b"poison", b"c", b"d"])

    assert failures(answers) == [1]
    assert [content for _, content in answers][2:] == [b"c", b"d"]


def test_descriptions_are_marked():
    """The handler sees an empty row and the header describe (reference 5.4); its answer is one of a body."""
    seen = []

    def describes(data, context):
        seen.extend((data, *(context.get_request_header(0, name) for name in ("describe", "explain"))))
        return [{"a": 1}]

    ((answer, content),) = Bench(describes).run([b""], DESCRIBE)

    assert seen == [[{}], "True", None]
    assert (answer.failed, answer.content_type, content) == (False, "application/json", b'{\n  "a": 1\n}')


# -- isolation (design, section 5)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("kind", [BODY, INSTANCE], ids=["body", "instance"])
def test_failing_row_fails_alone_in_every_position(size, kind):
    """One bad row of a batch gets the error, all others their answers (F18)."""
    good = b"good" if kind == BODY else b'"good"'
    bad = b"poison" if kind == BODY else b'"poison"'
    for position in range(size):
        bench = Bench(poisoned, 8)
        answers = bench.run([bad if i == position else good for i in range(size)], kind)

        assert failures(answers) == [position]
        status, text = (503, b"Prediction failed") if kind == BODY else (500, b"ValueError : bad row")
        assert (answers[position][0].status, answers[position][1]) == (status, text)
        assert answers[position][0].error_type == "InternalServerException"
        assert all(content == good for i, (_, content) in enumerate(answers) if i != position)
        assert len(bench.calls) <= 1 + 2 * math.ceil(math.log2(size))
        assert bench.message.calls == len(bench.calls)


@given(st.data(), st.integers(1, 64))
def test_number_of_calls_is_bounded(data, size):
    """All bad rows fail without endless calls; two bad rows leave the others whole (F20)."""
    bad = data.draw(st.sets(st.integers(0, size - 1)))
    bench = Bench(poisoned, size)
    answers = bench.run([b"poison" if i in bad else b"good" for i in range(size)])

    assert bad <= set(failures(answers))
    assert len(bad) > 2 or bad == set(failures(answers))
    depth = math.ceil(math.log2(max(2, size)))
    assert len(bench.calls) <= min(2 * size - 1, 4 * depth + 4 + depth)
    assert all(content == b"good" for answer, content in answers if not answer.failed)


def test_all_rows_fail_if_all_are_bad_or_none_is_isolated():
    """A batch of nothing but bad rows fails whole, and the service goes on (F20)."""
    bench = Bench(poisoned)

    assert failures(bench.run([b"poison"] * 8)) == list(range(8))
    assert bench.run([b"good"]) == [(octets(4), b"good")]

    whole = Bench(poisoned, isolate=False)

    assert failures(whole.run([b"a", b"poison", b"c"])) == [0, 1, 2]
    assert whole.calls == [3]


def test_envelopes_get_instances_apart():
    bench = Bench(lambda data, _: [1 // instance.value for instance in data], envelope="kserve")
    answers = bench.run([b"1", b"0", b"1", b"1"], INSTANCE)

    assert failures(answers) == [1]
    assert [content for answer, content in answers if not answer.failed] == [b"1"] * 3


def test_printed_failures_name_their_requests(capsys):
    Bench(poisoned).run([b"a", b"poison"])
    printed = capsys.readouterr().err
    Bench(lambda data, context: [data[0]["data"]]).run([b""])
    hinted = capsys.readouterr().err
    Bench(lambda data, context: [], batch_size=32, isolate=False).run([b""] * 20)

    assert printed.count("\nValueError: bad row\n") == 2
    assert "During handling" not in printed
    failed = [line for line in printed.splitlines() if line.startswith("Failed")]
    assert failed == ["Failed for requests id0, id1:", "Failed for request id1:"]
    assert hinted.splitlines()[-1].startswith("Hint: a request has its content")
    assert "id15 and 4 more:" in capsys.readouterr().err


# -- wrong results (reference 6.5)


@pytest.mark.parametrize(
    "returned",
    [None, {"a": 1}, (b"a", b"b"), "ab", 5, iter([b"a", b"b"]), (b for b in (b"a", b"b"))],
    ids=["None", "dict", "tuple", "str", "int", "iterator", "generator"],
)
def test_result_that_is_no_list_is_refused(returned, capsys):
    """Anything but a list is an invalid output, in the words of each protocol; the log has the type (F19)."""
    bench = Bench(lambda data, context: returned)

    for answer, content in bench.run([b"a", b"b"]):
        assert (answer.failed, answer.status, content) == (True, 503, b"Invalid model predict output")
    assert f"The handler returned {type(returned).__name__}, a list is needed." in capsys.readouterr().err
    ((answer, content),) = bench.run([b"1"], INSTANCE)
    assert answer.status == 500
    assert content == f"The handler returned {type(returned).__name__}, a list is needed.".encode()


@pytest.mark.parametrize(("surplus", "count"), [(-1, 3), (1, 5), (-4, 0)])
def test_wrong_number_of_answers_is_refused(surplus, count, capsys):
    """Too few or too many results are not assigned to rows by position; the log has both numbers (F19)."""
    bench = Bench(lambda data, context: [b"x"] * max(0, len(data) + surplus), isolate=False)
    instances = f"instances: expected 4, the handler returned {count}"

    for kind, status, text in (
        (BODY, 503, "number of batch response mismatched"),
        (INSTANCE, 500, f"size of prediction is not equal to the size of {instances}"),
    ):
        assert {(a.status, c.decode()) for a, c in bench.run([b"1"] * 4, kind)} == {(status, text)}
        assert instances in capsys.readouterr().err


def test_rows_are_answered_by_a_handler_that_breaks_the_contract_for_some():
    """One that leaves a bad row out fails that row only (F19); one for single requests gets rows singly."""
    leaves_out = Bench(lambda data, _: [bytes(row["body"]) for row in data if row["body"] != b"poison"])
    single = Bench(lambda data, _: [bytes(data[0]["body"])])
    answers = leaves_out.run([b"a", b"poison", b"c"])

    assert failures(answers) == [1]
    assert answers[1][1] == b"number of batch response mismatched"
    assert [content for _, content in single.run([b"a", b"b", b"c"])] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("code", "status"), [(404, 404), (599, 599), (413, 507), (42, 500), (100_000, 500), (-1, 500)]
)
@pytest.mark.parametrize("kind", [BODY, INSTANCE])
def test_prediction_exception_names_its_status(code, status, kind):
    """So does a subclass of a class of that name, which old handlers bring by another import."""
    foreign = type("PredictionException", (Exception,), {"error_code": code, "message": "no such thing"})
    for error in (PredictionException("no such thing", code), type("Mine", (foreign,), {})("x")):
        ((answer, content),) = Bench(raising(error)).run([b"1"], kind)

        assert (answer.failed, answer.status, content) == (True, status, b"no such thing")


@pytest.mark.parametrize("error", [MemoryError(), ValueError("no CUDA device")])
@pytest.mark.parametrize("kind", [BODY, INSTANCE])
def test_out_of_memory_fails_the_batch_without_another_try(error, kind):
    """Want of the machine's memory is 507 for all rows, and the handler is not driven into it again (F43)."""
    bench = Bench(raising(error))
    answers = bench.run([b"1"] * 4, kind)

    assert {(a.failed, a.status, c) for a, c in answers} == {(True, 507, b"Out of resources")}
    assert bench.calls == [4]


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("instances"), "KeyError : 'instances'"),
        (ValueError("\ud800"), "ValueError : ?"),
        (Mute(), "Mute : "),
        (ValueError("x" * 1_000_000), f"ValueError : {'x' * 3987}… (1000013 characters)"),
    ],
)
def test_instances_are_answered_with_the_exception(error, text):
    ((answer, content),) = Bench(raising(error)).run([b"1"], INSTANCE)

    assert (answer.status, answer.failed, content) == (500, True, text.encode())
    assert answer.cause.startswith(type(error).__name__)


def test_unreadable_row_is_a_bad_request_and_the_others_run():
    """A row that cannot be decoded never reaches the handler (F2, F7)."""
    bench = Bench(lambda data, context: [row["body"] for row in data])
    answers = bench.run([b"1", b"{broken", b"3"], INSTANCE)

    assert bench.calls == [2]
    assert failures(answers) == [1]
    assert (answers[1][0].status, answers[1][0].error_type) == (400, "BadRequestException")
    assert [content for _, content in answers][::2] == [b"1", b"3"]
    forms = bench.run([b"x", b"y"], content_type="multipart/form-data")
    assert [a.status for a, _ in forms] == [400, 400]
    assert (bench.calls, bench.message.calls) == ([2], 0)


@pytest.mark.parametrize(
    ("message", "status", "kind", "expected", "text"),
    [
        ("no picture", 400, "BadRequestException", 400, b"no picture"),
        ("no picture", 422, "InternalServerException", 422, b"no picture"),
        (ValueError("truncated"), 400, "BadRequestException", 400, b"truncated"),
        ("\ud800", 0, "InternalServerException", 500, b"?"),
        (None, "x", "InternalServerException", 500, b"None"),
    ],
)
def test_rejected_row_gets_the_handlers_words(message, status, kind, expected, text):
    """It turns a row away by position, with any message and status; one call answers the others (F17)."""

    def handler(data, context):
        context.reject(1, message, status)
        return ["ok", None, "ok"]

    bench = Bench(handler)
    answers = bench.run([b"a", b"b", b"c"])

    assert failures(answers) == [1]
    assert answers[1] == (Answer(len(text), expected, failed=True, error_type=kind), text)
    assert bench.calls == [3]


def test_rejection_counts_when_the_call_fails_for_it():
    """A handler that rejects a row and then fails over its absence still has given the reason (F17)."""

    def handler(data, context):
        good = [bytes(row["body"]) for row in data if row["body"] != b"poison"]
        for i, row in enumerate(data):
            if row["body"] == b"poison":
                context.reject(i, "no picture")
        if not good:
            raise RuntimeError("stack expects a non-empty list")
        return good

    answers = Bench(handler).run([b"a", b"poison", b"c"])

    assert [(a.status, c) for a, c in answers] == [(200, b"a"), (400, b"no picture"), (200, b"c")]


def test_status_headers_and_type_are_per_row():
    """Each row's answer has its own; a content type that is set as a header appears once (reference 7.5)."""

    def handler(data, context):
        context.set_response_status(201, "Made", idx=1)
        context.set_response_header(1, "X-A", "1")
        context.set_response_content_type(2, "text/x")
        context.set_response_header(3, "Content-Type", "image/png")
        return [{"a": 1}] * 4

    assert [answer for answer, _ in Bench(handler).run([b""] * 4)] == [
        Answer(12, 200, "application/json"),
        Answer(12, 201, "application/json", "Made", [("X-A", "1")]),
        Answer(12, 200, "text/x"),
        Answer(12, 200, "image/png"),
    ]


def test_status_of_a_failed_call_does_not_leak_into_the_next():
    """What was set before a failure is forgotten with the call (F18)."""

    def handler(data, context):
        if len(data) > 1:
            context.set_all_response_status(299)
            raise ValueError
        return [b"ok"]

    assert Bench(handler).statuses([b"", b""]) == [200, 200]


@pytest.mark.parametrize(
    ("status", "sent"),
    {"404": 404, HTTPStatus.CREATED: 201, 204.0: 204, None: 500, "none": 500, 7: 500, math.inf: 500}.items(),
)
def test_any_status_can_be_sent(status, sent):
    def handler(data, context):
        context.set_response_status(status, "\ud800", 0)
        context.set_response_header(0, "X-\udcff", "\ud800")
        return [b""]

    ((answer, _),) = Bench(handler).run([b""])

    assert (answer.status, answer.phrase, answer.headers) == (sent, "?", [("X-?", "?")])


class Unreadable(dict[str, Any]):
    """Fails in the encoder of bodies."""

    def items(self):
        raise LookupError("broken object")


class Worse:
    """Fails in the encoder of instances."""

    def tolist(self):
        raise LookupError("broken object")


@pytest.mark.parametrize(
    ("value", "kind", "status"),
    [
        (object(), BODY, 503),
        (object(), INSTANCE, 500),
        ({1, 2}, BODY, 503),
        ("\ud800", BODY, 503),
        ({"a": b"x"}, BODY, 503),
        (Unreadable(a=1), BODY, 503),
        (Worse(), INSTANCE, 500),
    ],
    ids=["object", "prediction", "set", "text", "bytes", "failing dict", "failing array"],
)
def test_answer_without_a_form_fails_its_row_only(value, kind, status):
    bench = Bench(lambda data, context: [b"ok", value, b"ok"])
    answers = bench.run([b"1"] * 3, kind)

    assert failures(answers) == [1]
    assert answers[1][0].status == status
    assert isinstance(value, Unreadable | Worse) or answers[1][1] == b"Unsupported model output data type."
    assert bench.calls == [3]


def test_answer_over_the_limit_fails_alone():
    """A response larger than max_response_size is an error of its own row; at the limit it is fine (F28)."""
    bench = Bench(lambda data, context: [b"x" * 10, b"x" * 11], max_response_size=10)
    (fine, _), (answer, content) = bench.run([b"", b""])

    assert fine == octets(10)
    assert (answer.failed, answer.status) == (True, 500)
    assert b"11 bytes, max_response_size allows 10" in content


def test_metrics_and_phases_travel_with_the_answers():
    def handler(data, context):
        context.metrics.add_counter("seen", len(data), 0)
        context._ms_state.phases = (1.0, 2.0, 0.5)
        return poisoned(data, context)

    bench = Bench(handler)
    bench.run([b"a", b"b", b"poison", b"d"])

    measured = [(m.value, m.request_id) for m in bench.message.metrics or ()]
    assert measured == [(4.0, "id0"), (2.0, "id0"), (2.0, "id2"), (1.0, "id2"), (1.0, "id3")]
    assert bench.message.phases == (2.0, 4.0, 1.0)
    bench.run([b"a"])
    assert len(bench.message.metrics or ()) == 1


WHERE = "(h.py, line 2, in handle)"


@pytest.mark.parametrize(
    ("line", "kind", "status", "words"),
    [
        ("raise ValueError('bad row')", BODY, 503, f"Prediction failed: ValueError: bad row {WHERE}"),
        ("raise ValueError('bad row')", INSTANCE, 500, f"ValueError : bad row {WHERE}"),
        ("raise PredictionException('too long', 400)", BODY, 400, "too long"),
        ("return [data[0]['data']]", BODY, 503, f"Prediction failed: KeyError: 'data' {WHERE}"),
        ("return [data[0]['data']]", BODY, 503, '. Hint: a request has its content under "data" or "body"'),
        ("return []", BODY, 503, "number of batch response mismatched: size of prediction"),
        ("return []", BODY, 503, "Hint: handle must return a list"),
        ("return [object()]", BODY, 503, "serializable: object. Hint: an answer is bytes, text, or what"),
        ("return [data[0]['instances']]", INSTANCE, 500, "Hint: the server has split the body"),
        ("raise MemoryError('no room')", BODY, 507, "Out of resources: MemoryError: no room"),
    ],
)
def test_exposed_failures_say_what_and_where_with_a_hint(tmp_path, line, kind, status, words):
    """The message of a PredictionException is the whole answer."""
    source = f"def handle(data, context):\n    {line}\n"
    scope = {"PredictionException": PredictionException}
    exec(compile(source, str(tmp_path / "h.py"), "exec"), scope)
    bench = Bench(scope["handle"])
    bench.service._load = msgspec.structs.replace(bench.service._load, model_dir=str(tmp_path), expose=True)
    ((answer, content),) = bench.run([b"{}"], kind)

    assert (answer.failed, answer.status) == (True, status)
    if line.startswith(("raise ValueError", "raise Prediction")):
        assert content.decode() == words
    assert words in content.decode()


def poisoning(gpus):
    """Breaks the GPU as soon as it meets a certain row, and cannot compute from then on."""

    def handle(data, context):
        bodies = [bytes(row["body"]) for row in data]
        if b"bad" in bodies:
            raise ValueError("bad row")
        if b"poison" in bodies:
            gpus.fail()
        gpus.launch()
        return bodies

    return handle


def test_a_broken_gpu_fails_its_batch_without_another_try(gpus):
    """All rows get 500 and why; the server is informed once, and the process ends (F75)."""
    bench, channel = connected(poisoning(gpus))
    answers = bench.run([b"a", b"b", b"poison", b"c"])

    assert {(answer.status, content) for answer, content in answers} == {(500, GPU_BROKEN.encode())}
    assert answers[0][0].cause.startswith("AcceleratorError: CUDA error: device-side assert triggered")
    assert bench.calls == [4]
    ((message, _),) = channel.sent
    assert isinstance(message, Broken)
    assert message.reason == answers[0][0].cause

    ((_, content),) = Bench(poisoning(gpus), expose=True).run([b"poison"])
    assert content.startswith(f"{GPU_BROKEN}: AcceleratorError: CUDA error: device-side assert".encode())
    assert b"Hint: mostly an index out of range" in content


def test_what_a_broken_gpu_holds_is_not_freed(gpus):
    """torch may abort the process where a tensor cannot be freed: answers are sent first."""

    def handle(data, context):
        activations = gpus.hold(GIB)
        gpus.fail()
        gpus.launch()
        return [activations]

    bench = Bench(handle)
    bench.run([b"a", b"b"])
    gc.collect()

    assert bench.service.broken is not None
    assert gpus.allocated == GIB


def test_answers_from_before_the_gpu_broke_count(gpus):
    bench = Bench(poisoning(gpus))

    assert bench.statuses([b"a", b"bad", b"poison", b"c"]) == [200, 503, 500, 500]
    calls = len(bench.calls)
    assert set(bench.statuses([b"a", b"b"])) == {500}
    assert len(bench.calls) == calls


@pytest.mark.parametrize("kind", [BODY, INSTANCE])
def test_a_gpu_that_breaks_when_answers_are_read_is_broken(gpus, kind):
    """Errors of kernels come when something waits for them, such as the encoding of a tensor."""

    def handle(data, context):
        gpus.fail()
        return [torch.ones(2)] * len(data)

    bench = Bench(handle)
    bench.service.lists = True

    assert bench.statuses([b"1", b"2"], kind) == [500, 500]
    assert bench.service.broken is not None


def test_a_gpu_that_breaks_while_parts_are_sent_is_broken(gpus):
    def generate():
        yield b"part"
        gpus.fail()
        gpus.launch()

    bench, channel = connected(lambda data, context: [generate(), b"whole"])

    assert bench.statuses([b"a", b"b"]) == [500, 200]
    assert [type(message) for message, _ in channel.sent] == [Parts, Broken]


def test_an_error_that_the_gpu_survives_is_as_before(gpus):
    """TorchServe's 507 for what says CUDA (reference 6.5), and halving for what does not."""
    errors = {
        b"cuda": cuda_error("CUDA error: invalid configuration argument"),
        b"cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"),
    }

    def handle(data, context):
        for row in data:
            if error := errors.get(bytes(row["body"])):
                raise error
        return echo(data, context)

    bench = Bench(handle)

    assert bench.statuses([b"a", b"cuda"]) == [507, 507]
    assert bench.statuses([b"a", b"cudnn"]) == [200, 503]
    assert bench.service.broken is None


def greedy(gpus):
    """Takes 2 GiB for each row, 50 for a large one, in two steps, and holds them until the call ends."""

    def handle(data, context):
        bodies = [bytes(row["body"]) for row in data]
        size = sum(50 * GIB if body == b"large" else GIB for body in bodies)
        held = [gpus.hold(size)]
        held.append(gpus.hold(size))
        return bodies

    return handle


def test_a_batch_that_exhausts_the_gpu_is_halved(gpus):
    gpus.memory = 9 * GIB
    bench, channel = connected(greedy(gpus))

    assert set(bench.statuses([b"x"] * 8)) == set(bench.statuses([b"x"] * 8)) == {200}
    assert bench.calls == [8, 4, 4, 4, 4]
    assert gpus.calls.count("empty_cache") == 1
    gpus.memory = 5 * GIB
    assert set(bench.statuses([b"x"] * 8)) == {200}
    assert bench.calls[5:] == [4, 2, 2, 4, 2, 2]
    assert [message for message, _ in channel.sent] == [Fitting(4), Fitting(2)]


def test_few_calls_find_what_fits(gpus):
    gpus.memory = 9 * GIB
    bench = Bench(greedy(gpus), batch_size=64)

    assert set(bench.statuses([b"x"] * 64)) == {200}
    assert bench.calls == [64, 32, 16, 8, *[4] * 16]

    in_vain = Bench(greedy(gpus), batch_size=256)

    assert set(in_vain.statuses([b"large"] * 256)) == {507}
    assert len(in_vain.calls) <= 4 * 8 + 4 + 8


def test_a_row_that_does_not_fit_alone_fails_alone(gpus):
    bench, channel = connected(greedy(gpus), expose=True)
    answers = bench.run([b"x", b"x", b"large", b"x"])

    assert [answer.status for answer, _ in answers] == [200, 200, 507, 200]
    for words in (
        "Out of resources: OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 GiB",
        "has a total capacity of 80.00 GiB of which 30.00 GiB is free",
        "Hint: the GPU's memory does not suffice: nvidia-smi shows",
    ):
        assert words in answers[2][1].decode()
    assert (bench.service.limit.most_rows, channel.sent) == (0, [])


def test_numbers_come_from_the_gpu_where_the_error_has_none(gpus):
    gpus.allocate(50 * GIB)
    handler = raising(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    ((answer, content),) = Bench(handler, expose=True).run([b"x"])

    assert answer.status == 507
    assert b"Hint: the GPU's memory does not suffice (30.00 of 80.00 GiB are free)" in content


def test_whole_batches_are_tried_again(gpus, monkeypatch):
    monkeypatch.setattr(service_module, "SPLITS", 3)
    gpus.memory = 9 * GIB
    bench, channel = connected(greedy(gpus))
    for _ in range(4):
        bench.run([b"x"] * 8)
    in_vain = bench.calls.copy()
    gpus.memory = 80 * GIB
    for _ in range(4):
        bench.run([b"x"] * 8)

    assert in_vain == [8, 4, 4, 4, 4, 4, 4, 8, 4, 4]
    assert bench.calls[len(in_vain) :] == [4, 4, 4, 4, 8, 8]
    assert [message for message, _ in channel.sent] == [Fitting(4), Fitting(0)]


@pytest.mark.parametrize("options", [{"ranks": 2}, {"isolate": False}])
def test_some_batches_are_not_halved(gpus, options):
    """Those of ranks, as only one may have run out, and where isolation is off: 507 for all."""
    gpus.memory = 9 * GIB
    bench = Bench(greedy(gpus), **options)

    assert set(bench.statuses([b"x"] * 8)) == {507}
    assert bench.calls == [8]
