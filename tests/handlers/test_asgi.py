"""``modelserver.AsgiModel``: what an application receives and sends is that of ASGI."""

import asyncio

import pytest
from tests.handlers.parts import Stream

import modelserver
from modelserver_handlers.asgi import ApplicationModel, AsgiCall
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.errors import PredictionException

SCOPE = {"path": "/predictions/m/a", "root_path": "/predictions/m", "headers": [["accept", "*/*"]]}


class GatedStream(Stream):
    """``gate`` is open while more may be sent."""

    def __init__(self):
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()


class Bench:
    """The context of one call, and the call."""

    def __init__(self, app, body=b"", **scope):
        self.stream = GatedStream()
        self.state = BatchState(["r"], parameters=[{**SCOPE, **scope}])
        self.state.stream = self.stream
        self.context = Context("m", "/", None, 1, None, "0")._ms_of_request(self.state)
        self.call = AsgiCall(app, {**SCOPE, **scope}, body, self.context)

    @property
    def head(self):
        processor = self.state.processor(0)
        return processor.get_response_status_code(), list(processor.get_response_headers().items())


async def respond(send, *parts, status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})


async def test_scope_is_that_of_the_specification():
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)
        await respond(send, b"")

    headers = [["content-encoding", "gzip"], ["content-length", "3"], ["x", "é"]]
    await Bench(
        app, b"12345", method="PUT", query_string="a=%20", headers=headers, state={"a": 1}
    ).call.answer()
    scope = scopes[0]

    assert (scope["type"], scope["method"], scope["query_string"]) == ("http", "PUT", b"a=%20")
    assert (scope["path"], scope["root_path"]) == ("/predictions/m/a", "/predictions/m")
    assert scope["headers"] == [(b"x", b"\xe9"), (b"content-length", b"5")]
    assert (scope["raw_path"], scope["state"]) == (b"/predictions/m/a", {"a": 1})


async def test_parts_are_sent_while_the_client_takes_them():
    async def app(scope, receive, send):
        await respond(send, b"a", b"b" * 9000, b"c", b"d", headers=[(b"content-type", b"text/x")])

    bench = Bench(app)
    bench.stream.gate.clear()
    answer = asyncio.create_task(bench.call.answer())
    for _ in range(20):
        await asyncio.sleep(0)

    assert bench.stream.parts == [b"a"]
    assert not answer.done()
    bench.stream.gate.set()
    assert await answer == b"cd"
    assert b"".join(bench.stream.parts) == b"a" + b"b" * 9000
    assert bench.head == (200, [("content-type", "text/x")])


async def test_application_goes_on_after_its_response():
    door, ended = asyncio.Event(), asyncio.Event()
    messages = []

    async def app(scope, receive, send):
        await receive()
        await respond(send, b"done")
        messages.append((await receive())["type"])
        await door.wait()
        ended.set()

    assert await Bench(app).call.answer() == b"done"
    assert not ended.is_set()
    door.set()
    await asyncio.wait_for(ended.wait(), 5)
    assert messages == ["http.disconnect"]


@pytest.mark.parametrize("listens", [True, False])
async def test_client_that_leaves_ends_the_application(listens):
    seen = []
    started, ended = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await receive()
        started.set()
        try:
            if listens:
                seen.append((await receive())["type"])
                await respond(send, b"ignored")
            else:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        finally:
            ended.set()

    answer = asyncio.create_task(Bench(app).call.answer())
    await started.wait()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    await asyncio.wait_for(ended.wait(), 5)

    assert seen == ["http.disconnect" if listens else "cancelled"]


async def fails(scope, receive, send):
    raise ValueError("oh")


@pytest.mark.parametrize("messages", [[], ["start"], ["body"], ["start", "body"], ["start", "unknown"]])
@pytest.mark.parametrize("error", [None, ValueError, asyncio.CancelledError])
async def test_failures_are_an_error_of_the_request(messages, error):
    async def app(scope, receive, send):
        for kind in messages:
            await send({"type": f"http.response.{kind}", "status": 200, "body": b"a", "more_body": True})
        if error is not None:
            raise error

    with pytest.raises(PredictionException) as failure:
        await Bench(app).call.answer()

    assert failure.value.error_code == 500


async def test_failure_after_the_response_is_logged(caplog):
    async def app(scope, receive, send):
        await respond(send, b"sent", status=500)
        raise ValueError("oh")

    bench = Bench(app)

    assert await bench.call.answer() == b"sent"
    await asyncio.sleep(0)
    assert "The application failed after its response" in caplog.text


async def test_application_without_a_lifespan_is_served():
    model = ApplicationModel(fails)
    await model.initialize(Bench(None).context)
    await model._ms_close()

    assert model._ms_endpoints == {"*": False}
    assert model._ms_concurrency > 1


async def test_failing_startup_or_missing_application_fails_the_load():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(RuntimeError, match="startup has failed: no database"):
        await ApplicationModel(app).initialize(Bench(None).context)

    with pytest.raises(TypeError, match="app is missing"):
        await modelserver.AsgiModel().initialize(Bench(None).context)


async def test_request_of_another_protocol_is_refused():
    model = ApplicationModel(fails)
    context = Context("m", "/", None, 1, None, "0")._ms_of_request(BatchState(["r"]))
    with pytest.raises(PredictionException, match="below /predictions/NAME"):
        await model.handle([{"body": b""}], context)
