import asyncio
import logging
import os
import threading

import pytest
import uvloop
from tests.engine.worker.channels import Connection, service_of

from modelserver.engine.wire import messages as wire
from modelserver.engine.worker.asynchronous import AsyncCalls, check_asynchronous, use_gpu_in_threads
from modelserver_handlers import current_device
from modelserver_handlers.errors import WorkerUnusable
from modelserver_handlers.streaming import send_intermediate_predict_response


class Bench(Connection):
    """An asynchronous service in this loop, and the server's end of its connection."""

    def __init__(self, handle):
        super().__init__()
        self.server.setblocking(False)
        service = service_of(handle, 4, mode=wire.ASYNC)
        service.connect(self.channel)
        self.context = service.context
        self.task = asyncio.create_task(AsyncCalls(service, self.channel).serve())

    async def receive(self):
        while not self.received:
            self.take(await asyncio.get_running_loop().sock_recv(self.server, 1 << 16))
        return self.received.pop(0)

    async def result(self):
        """The next result: its batch, whether it failed, its content."""
        while not isinstance((got := await self.receive())[0], wire.Result):
            pass
        return got[0].sequence, got[0].answers[0].failed, got[1]


@pytest.fixture
async def bench(capsys):
    """Makes benches that have ended after the test."""
    made = []

    def make(handle):
        made.append(Bench(handle))
        return made[-1]

    yield make
    for each in made:
        each.server.close()
        await asyncio.wait_for(each.task, 10.0)
        each.end.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_answers_that_the_connection_has_no_room_for_are_sent_whole(run):
    """The server may be slow to read: it was uvloop that made the connection fail instead of wait."""

    async def handle(data, context):
        return [bytes(1 << 20)]

    async def receive():
        made = Bench(handle)
        for sequence in range(8):
            made.ask(sequence)
        threading.Thread(target=collect, args=[made]).start()
        await asyncio.wait_for(made.task, 10.0)
        made.end.close()

    def collect(made):
        made.server.setblocking(True)
        while len(made.received) < 8:
            made.take(made.server.recv(1 << 16))
        sizes.extend(len(content) for _, content in made.received)
        made.server.close()

    sizes = []
    run(receive())

    assert sizes == [1 << 20] * 8


async def test_contexts_are_of_one_request(bench):
    """What initialize has attached or declared is there; values go with the answer (13.6)."""

    async def handle(data, context):
        context.set_response_header(0, "x-id", str(context.get_request_id(0)))
        context.metrics.add_counter("calls", data[0]["body"], 0)
        declared = context.metrics.get_metric("Declared")
        await asyncio.sleep(0)
        declared.add_or_update(data[0]["body"], ["kind"])
        context.own = data
        return [context.shared]

    made = bench(handle)
    made.context.shared = "all"
    made.context.metrics.add_metric_to_cache("Declared", "count", ["Kind"])
    made.ask(1, body=b"10")
    made.ask(2, body=b"20")
    for _ in range(2):
        message, content = await made.receive()
        answer, (calls, declared) = message.answers[0], message.metrics
        name, value = f"id{message.sequence}", message.sequence * 10.0
        assert (answer.headers, content) == ([("x-id", name)], b"all")
        assert (calls.value, calls.request_id) == (value, name)
        assert (declared.name, declared.value, declared.dimensions) == ("Declared", value, [("Kind", "kind")])
    assert not hasattr(made.context, "own")


async def test_parts_come_before_the_result(bench):
    async def handle(data, context):
        for turn in range(2):
            await asyncio.sleep(0)
            send_intermediate_predict_response([f"p{turn}"], context.request_ids, "", 200, context)
        return ["end"]

    made = bench(handle)
    made.ask(1)
    made.ask(2)
    got = [await made.receive() for _ in range(6)]

    for sequence in (1, 2):
        own = [
            (type(m), content)
            for m, content in got
            if sequence == (m.sequences[0] if isinstance(m, wire.Parts) else m.sequence)
        ]
        assert own == [(wire.Parts, b"p0"), (wire.Parts, b"p1"), (wire.Result, b"end")]


async def test_parts_that_leave_together_come_before_the_result(bench):

    async def handle(data, context):
        stream = context._ms_state.stream
        stream.send({0: b"first"})
        stream.send_together([(stream, b"second")])
        return ["end"]

    made = bench(handle)
    made.ask(1)
    got = [await made.receive() for _ in range(3)]

    assert [(type(m), text) for m, text in got] == [
        (wire.Parts, b"first"),
        (wire.Parts, b"second"),
        (wire.Result, b"end"),
    ]


@pytest.mark.parametrize(
    ("handle", "content"),
    [
        (lambda: 1 // 0, b"Prediction failed"),
        (lambda: "text", b"Invalid model predict output"),
        (list, b"number of batch response mismatched"),
        (lambda: [object()], b"Unsupported model output data type."),
    ],
)
async def test_failures_are_of_their_own_request(bench, handle, content):
    async def call(data, context):
        return handle() if data[0]["body"] == 0 else ["good"]

    made = bench(call)
    made.ask(0, body=b"0")
    made.ask(1, body=b"1")

    assert await made.result() == (0, True, content)
    assert await made.result() == (1, False, b"good")


async def test_a_broken_gpu_ends_the_process(bench, gpus, monkeypatch):
    """The process ends after the response to the call that broke it; the server is informed before (F75)."""
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)

    async def handle(data, context):
        gpus.fail()
        gpus.launch()

    made = bench(handle)
    made.ask(0)
    broken, _ = await made.receive()
    (result, content) = await made.receive()
    await made.task

    assert isinstance(broken, wire.Broken)
    assert (result.answers[0].status, content) == (500, wire.GPU_BROKEN.encode())
    assert ends == [1]


async def test_rejected_and_unreadable_requests_are_answered(bench):
    async def handle(data, context):
        context.reject(0, "not this")
        raise ValueError

    made = bench(handle)
    made.ask(0)
    made.ask(1, body=b"x", content_type="multipart/form-data")
    results = sorted([await made.result(), await made.result()])

    assert results[0] == (0, True, b"not this")
    assert results[1][:2] == (1, True)


async def test_a_client_that_leaves_cancels_its_call(bench):
    seen = []
    started = asyncio.Event()

    async def handle(data, context):
        if data[0]["body"] == 2:
            raise asyncio.CancelledError
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            seen.append(f"cancelled: {context.is_cancelled(0)}")
        return [""]

    made = bench(handle)
    made.ask(1, body=b"1")
    await started.wait()
    made.send(wire.Cancelled(1, [0]))
    made.send(wire.Cancelled(77, [0]))
    assert await made.result() == (1, True, b"")
    made.ask(2, body=b"2")

    assert await made.result() == (2, True, b"Prediction failed")
    assert seen == ["cancelled: True"]


async def test_stop_lets_calls_finish(bench):
    door = asyncio.Event()

    async def handle(data, context):
        await door.wait()
        return ["end"]

    made = bench(handle)
    made.ask(1)
    made.send(wire.Ping())
    made.send(wire.Stop())
    assert await made.receive() == (wire.Pong(), b"")
    assert not made.task.done()
    door.set()

    assert await made.result() == (1, False, b"end")
    await made.task


async def test_plain_handlers_are_called_after_a_warning(bench, caplog):
    def handle(data, context):
        return ["plain"]

    with caplog.at_level(logging.WARNING):
        check_asynchronous(handle)
    made = bench(handle)
    made.ask(1)

    assert await made.result() == (1, False, b"plain")
    assert "not an `async def`" in caplog.text


async def test_ids_are_unique(bench):
    seen = []
    met = asyncio.Event()

    async def handle(data, context):
        seen.append(context.get_request_id(0))
        if len(seen) == 2:
            met.set()
        await met.wait()
        return [context.get_request_id(0)]

    made = bench(handle)
    for sequence in (1, 2):
        made.send(wire.Predict(sequence, [wire.Row("same", 0)]))
    assert {await made.result(), await made.result()} == {(1, False, b"same"), (2, False, b"same-2")}
    made.send(wire.Predict(3, [wire.Row("same", 0)]))

    assert await made.result() == (3, False, b"same")


async def test_threads_of_a_handler_use_its_gpu(monkeypatch):
    entered = []
    monkeypatch.setattr(current_device, "_enter", lambda: entered.append(threading.current_thread().name))
    use_gpu_in_threads()
    name = await asyncio.to_thread(lambda: threading.current_thread().name)

    assert entered == [name]


async def test_call_may_wait_until_its_client_has_read(bench, monkeypatch):
    monkeypatch.setattr("modelserver.engine.worker.streaming.WINDOW", 10)
    steps = []

    async def handle(data, context):
        stream = context._ms_state.stream
        if data[0]["body"] == 2:
            return ["other"]
        for _ in range(2):
            stream.send({0: b"123456"})
            steps.append("open" if stream.gate.is_set() else "closed")
        await stream.gate.wait()
        return ["last"]

    made = bench(handle)
    made.ask(1, body=b"1")
    waits = [(await made.receive())[0].wait for _ in range(2)]
    made.ask(2, body=b"2")
    assert await made.result() == (2, False, b"other")
    made.send(wire.Proceed(1))
    made.send(wire.Proceed(77))

    assert await made.result() == (1, False, b"last")
    assert (waits, steps) == ([False, True], ["open", "closed"])


async def test_worker_that_is_unusable_leaves_its_requests_to_others(bench, monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)

    async def handle(data, context):
        raise WorkerUnusable("the engine has ended")

    made = bench(handle)
    made.ask(0)
    broken, _ = await made.receive()
    await made.task

    assert broken == wire.Broken("the engine has ended", of_gpu=False)
    assert (codes, capsys.readouterr().err) == ([1], "the engine has ended\n")
