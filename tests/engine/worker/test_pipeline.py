import threading
from typing import ClassVar

import pytest
from tests.engine.worker.channels import Channel, service_of
from tests.simulated_gpu import GIB

from modelserver.engine.wire import messages as wire
from modelserver.engine.worker.pipeline import Pipeline, can_prefetch
from modelserver_handlers import current_device
from modelserver_handlers.loader import LoadedHandler
from modelserver_handlers.streaming import send_intermediate_predict_response

PATIENCE = 10.0  # seconds after which a test gives up on another thread


class Halves:
    """A handler of two halves that notes who was prepared and computed, in which order."""

    pipelined: ClassVar[bool] = True

    def __init__(self):
        self.events = []
        self.prepared = {name: threading.Event() for name in "abcd"}
        self.wait_for = {}

    def _ms_prepare(self, data, context):
        names = [row["body"].decode() for row in data]
        self.events.append(f"prepare {''.join(names)} {context.get_request_id(0)}")
        for name in names:
            if name in self.prepared:
                self.prepared[name].set()
        if "poison" in names:
            raise ValueError("bad row")
        return names

    def _ms_complete(self, prepared, data, context):
        awaited = self.wait_for.get(prepared[0])
        if awaited is not None:
            assert self.prepared[awaited].wait(PATIENCE)
        self.events.append(f"complete {''.join(prepared)} {context.get_request_id(0)}")
        context.metrics.add_counter("computed", 1)
        if "late" in prepared:
            raise ValueError("bad row")
        return [name.upper() for name in prepared]

    def handle(self, data, context):
        return self._ms_complete(self._ms_prepare(data, context), data, context)


@pytest.fixture
def handler():
    return Halves()


def send_through(handler, batches, channel, most_rows=0):
    """Sends batches, as (sequence, names), or messages through a pipeline to the channel."""
    service = service_of(handler.handle)
    service.limit.most_rows = most_rows

    def messages():
        for batch in batches:
            if isinstance(batch, tuple):
                sequence, names = batch
                rows = [wire.Row(f"id-{name}", len(name)) for name in names]
                yield wire.Predict(sequence, rows), memoryview("".join(names).encode())
            else:
                yield batch, memoryview(b"")

    service.connect(channel)
    Pipeline(handler, service, channel).serve(messages())
    return service


@pytest.fixture
def serve(handler):
    """Sends batches through a pipeline; returns what it answered."""

    def run(batches, taken_back=()):
        channel = Channel()
        channel.taken_back = set(taken_back)
        send_through(handler, batches, channel)
        return channel.sent

    return run


def test_a_batch_that_was_taken_back_is_not_computed(serve, handler):
    sent = serve([(1, ["a"]), (2, ["b"]), (3, ["c"])], taken_back=[1, 2])

    assert [m.sequence for m, _ in sent if isinstance(m, wire.Result)] == [3]
    assert [event for event in handler.events if event.startswith("complete")] == ["complete c id-c"]


def test_no_more_than_the_next_batches_are_prepared(serve, handler):
    handler.wait_for["a"] = "c"

    serve([(1, ["a"]), (2, ["b"]), (3, ["c"]), (4, ["d"])])

    assert handler.events.index("complete a id-a") < handler.events.index("prepare d id-d")


def test_next_batch_is_prepared_while_one_runs(serve, handler):
    handler.wait_for["a"] = "b"

    sent = serve([(1, ["a"]), (2, ["b"])])

    assert handler.events.index("prepare b id-b") < handler.events.index("complete a id-a")
    answers = [(m.sequence, bodies) for m, bodies in sent if isinstance(m, wire.Result)]
    assert answers == [(1, [b"A"]), (2, [b"B"])]
    assert set(handler.events) == {"prepare a id-a", "prepare b id-b", "complete a id-a", "complete b id-b"}
    measured = [m.request_id for each, _ in sent if isinstance(each, wire.Result) for m in each.metrics or ()]
    assert measured == ["id-a", "id-b"]


@pytest.mark.parametrize("bad", ["poison", "late"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_failing_row_of_either_half_fails_alone(serve, bad, position):
    """A row that fails preparing or computing is isolated, and the next batch is served (F18)."""
    names = ["x", "y"]
    names.insert(position, bad)

    (first, bodies), (second, _) = serve([(1, names), (2, ["z"])])

    assert isinstance(first, wire.Result)
    assert isinstance(second, wire.Result)
    assert [answer.failed for answer in first.answers] == [name == bad for name in names]
    assert [body for each, body in zip(first.answers, bodies, strict=True) if not each.failed] == [b"X", b"Y"]
    assert not second.answers[0].failed


def test_messages_stay_in_order_until_a_stop(serve):
    sent = serve([wire.Ping(), (1, ["a"]), wire.Ping(), wire.Stop(), (2, ["b"])])
    assert [type(message) for message, _ in sent] == [wire.Pong, wire.Result, wire.Pong]


def test_unreadable_batch_is_answered_without_the_handler(serve, handler):
    ((message, _),) = serve([wire.Predict(1, [wire.Row("id", 0, content_type="multipart/form-data")])])

    assert isinstance(message, wire.Result)
    assert [answer.status for answer in message.answers] == [400]
    assert handler.events == []


def loaded(instance):
    return LoadedHandler(lambda data, context: data, lambda context: None, instance, built_in=False)


class Heir(Halves):
    pass


class Insisting(Halves):
    pipelined: ClassVar[bool] = True


class Undecided:
    pipelined = True


@pytest.mark.parametrize(
    ("instance", "answer"),
    [(Halves(), True), (Heir(), False), (Insisting(), True), (Undecided(), False), (None, False)],
)
def test_only_the_class_that_promises_is_pipelined(instance, answer):
    """A parent's promise does not bind its children, and a promise needs both halves."""
    assert can_prefetch(loaded(instance)) is answer


class OnGpu:
    """The first half takes 1/8 GiB for a row, or breaks the GPU, the second 2 GiB."""

    pipelined: ClassVar[bool] = True

    def __init__(self, gpus):
        self.gpus = gpus
        self.prepared = []

    def _ms_prepare(self, data, context):
        self.prepared.append(len(data))
        if any(row["body"] == b"poison" for row in data):
            self.gpus.fail()
        return self.gpus.hold(len(data) * GIB // 8)

    def _ms_complete(self, prepared, data, context):
        activations = self.gpus.hold(len(data) * 2 * GIB)
        assert activations is not prepared
        return [b"fine"] * len(data)

    def handle(self, data, context):
        return self._ms_complete(self._ms_prepare(data, context), data, context)


@pytest.fixture
def on_gpu(gpus):
    return OnGpu(gpus)


def test_an_error_of_the_gpu_in_the_first_half_is_one(on_gpu, leaves):
    """The batch gets 500, and the process ends (F75)."""
    channel = Channel()

    with pytest.raises(leaves):
        send_through(on_gpu, [(1, ["a", "poison"])], channel)
    (broken, _), (result, _) = channel.sent

    assert isinstance(broken, wire.Broken)
    assert [answer.status for answer in result.answers] == [500, 500]
    assert channel.is_closed


def test_batches_that_do_not_fit_are_prepared_in_parts(on_gpu):
    on_gpu.gpus.memory = 9 * GIB
    channel = Channel()
    send_through(on_gpu, [(1, list("abcdefgh"))], channel)
    service = send_through(on_gpu, [(2, list("abcdefgh"))], channel, most_rows=4)

    results = [message for message, _ in channel.sent if isinstance(message, wire.Result)]
    assert [{answer.status for answer in result.answers} for result in results] == [{200}, {200}]
    assert wire.Fitting(4) in [message for message, _ in channel.sent]
    assert on_gpu.prepared == [8, 4, 4, 4, 4]
    assert service.limit.most_rows == 4


def test_parts_of_a_batch_whose_client_leaves(serve, handler):
    handler.wait_for["a"] = "b"
    complete = handler._ms_complete

    def streaming(prepared, data, context):
        # Preparing b comes after the cancellation of a in the stream of messages.
        answers = complete(prepared, data, context)
        handler.events.append(f"{prepared[0]} cancelled: {context.is_cancelled(0)}")
        send_intermediate_predict_response(["part"], context.request_ids, "", 200, context)
        return answers

    handler._ms_complete = streaming
    sent = serve([(1, ["a"]), wire.Cancelled(1, [0]), (2, ["b"])])

    assert "a cancelled: True" in handler.events
    assert "b cancelled: False" in handler.events
    assert [m.sequences for m, _ in sent if isinstance(m, wire.Parts)] == [[2]]
    assert [m.sequence for m, _ in sent if isinstance(m, wire.Result)] == [1, 2]


def test_the_preparing_thread_uses_the_gpu(serve, handler, monkeypatch):
    monkeypatch.setattr(
        current_device, "_enter", lambda: handler.events.append(threading.current_thread().name)
    )
    serve([(1, ["a"]), (2, ["b"])])

    assert handler.events[:2] == ["prepare", "prepare a id-a"]
    assert handler.events.count("prepare") == 1
