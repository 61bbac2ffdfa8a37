"""``modelserver.AsgiModel``: an ASGI application, such as FastAPI's, that answers requests in a worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.language.events import EventStream

if TYPE_CHECKING:
    from modelserver_handlers.context import Context

Message: TypeAlias = "dict[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
Application: TypeAlias = "Callable[[Message, Receive, Send], Awaitable[None]]"

# Seconds for an application to end by itself when its client has left.
_GRACE: Final = 0.1
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_NO_SCOPE: Final = (
    "This model is an ASGI application: its routes are below /predictions/NAME. "
    "A request that came before it had loaded may be sent again."
)
_log = logging.getLogger(__name__)
# The application's tasks, of which some go on when the response has been sent.
_tasks: set[asyncio.Task[None]] = set()


class AsgiModel:
    """Set ``app``, in ``load`` or in the class: it answers requests below ``/predictions/NAME``.

    A module-level ``app`` is served without this class.
    """

    app: Any = None
    concurrency: ClassVar[int] = 256
    context: Any
    # Any path, each a whole request.
    _ms_endpoints: ClassVar[dict[str, bool]] = {"*": False}

    def load(self, context: Any) -> Any:
        """Called once, before the application's startup; may be ``async``."""

    @property
    def _ms_concurrency(self) -> int:
        return self.concurrency

    async def initialize(self, context: Any) -> None:
        """Calls ``load``, and starts the application. Raises TypeError if there is none."""
        self.context = context
        loaded = self.load(context)
        if inspect.isawaitable(loaded):
            await loaded
        if self.app is None:
            raise TypeError(f"{type(self).__name__}.app is missing: load(self, context) is to set it")
        self._lifespan = Lifespan(self.app)
        await self._lifespan.start()

    async def handle(self, data: Any, context: Context) -> list[Any]:
        """Answers one request."""
        scope = context.get_request_parameters(0)
        if "root_path" not in scope:
            raise PredictionException(_NO_SCOPE, 503)
        scope["state"] = self._lifespan.state.copy()
        return [await AsgiCall(self.app, scope, bytes(data[0].get("body", b"")), context).answer()]

    async def _ms_close(self) -> None:
        await self._lifespan.stop()


class ApplicationModel(AsgiModel):
    """Serves an application of a script as it is."""

    def __init__(self, app: Any) -> None:
        self.app = app


class AsgiCall:
    """One request of an ASGI application, whose response is that of the call of a handler.

    For handlers whose worker runs an event loop (``_ms_concurrency``), and that answer some requests by an
    application::

        async def handle(self, data, context):
            scope = context.get_request_parameters(0)  # if _ms_endpoints has "*"
            return [await AsgiCall(self.app, scope, data[0]["body"], context).answer()]

    Args:
        app: the application, whose :class:`Lifespan` has started.
        scope: as ASGI has it, with texts instead of bytes. Needed are ``path`` and ``headers`` (pairs with
            names in lower case); ``method`` is POST by default. ``state`` may be that of the lifespan.
        body: the whole body, without a content encoding.
        context: of the call. Its stream gets the parts of the response.
    """

    def __init__(self, app: Application, scope: Mapping[str, Any], body: bytes, context: Context) -> None:
        self._app = app
        self._scope = _complete(scope, body)
        self._body: bytes | None = body
        self._context = context
        self._start: Message | None = None
        self._stream: EventStream | None = None
        self._last: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._disconnected = asyncio.Event()

    async def answer(self) -> bytes:
        """The body, or its last part if others were sent.

        The application goes on after it, as for tasks in the background. If the call is cancelled, it gets
        ``http.disconnect``, and is cancelled soon afterwards.

        Raises:
            PredictionException: the application failed.
        """
        task = asyncio.create_task(self._run())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        try:
            return await self._last
        except asyncio.CancelledError:
            self._disconnected.set()
            await asyncio.wait({task}, timeout=_GRACE)
            task.cancel()
            raise

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            failure = PredictionException("Internal Server Error", 500)
            failure.__cause__ = error
            if self._last.done():
                _log.error("The application failed after its response", exc_info=error)
            else:
                self._last.set_exception(failure)
        finally:
            if not self._last.done():
                reason = "The application has ended without a whole response"
                self._last.set_exception(PredictionException(reason, 500))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._disconnected.is_set():
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None:
            raise RuntimeError(f"unexpected ASGI message: {message['type']}")
        body = bytes(message.get("body", b""))
        if message.get("more_body"):
            if self._stream is None:
                self._stream = EventStream(self._context)
                self._begin(self._start)
            self._stream.write(body)
            await self._stream.drain()
            return
        if self._stream is None:
            self._begin(self._start)
        else:
            body = self._stream.take() + body
        self._last.set_result(body)
        self._disconnected.set()

    def _begin(self, start: Message) -> None:
        self._context.set_response_status(int(start["status"]), idx=0)
        pairs = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ())
        ]
        if all(name.lower() != "content-type" for name, _ in pairs):
            pairs.append(("content-type", ""))
        self._context._ms_state.processor(0)._response_header = _HeaderPairs(pairs)


class _HeaderPairs(dict[str, str]):
    """Headers of a response, among which several have the same name."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def _complete(scope: Mapping[str, Any], body: bytes) -> Message:
    """The scope with bytes, and without the content encoding, which the server has undone."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in scope["headers"]]
    if any(name == b"content-encoding" for name, _ in headers):
        others = [pair for pair in headers if pair[0] not in {b"content-encoding", b"content-length"}]
        headers = [*others, (b"content-length", b"%d" % len(body))]
    usual = {"type": "http", "asgi": _ASGI, "method": "POST", "http_version": "1.1", "scheme": "http"}
    return {
        **usual,
        "root_path": "",
        "client": None,
        "server": None,
        **scope,
        "raw_path": scope.get("raw_path", scope["path"]).encode("latin-1", "replace"),
        "query_string": scope.get("query_string", "").encode("latin-1"),
        "headers": headers,
    }


class Lifespan:
    """Startup and shutdown of an application. ``state`` is for the scopes of its requests."""

    def __init__(self, app: Application) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._replies: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises RuntimeError if the startup fails. Applications without lifespan events have none."""
        self._task = asyncio.create_task(self._run())
        await self._notify("startup")

    async def stop(self) -> None:
        """Waits for what goes on in the background, then shuts the application down."""
        if _tasks:
            await asyncio.wait(_tasks)
        await self._notify("shutdown")

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": _ASGI, "state": self.state}
        try:
            await self._app(scope, self._messages.get, self._replies.put)
        except Exception as error:  # noqa: BLE001 - an application that has no lifespan raises anything
            _log.debug("The application has no lifespan events, or has failed in one", exc_info=error)

    async def _notify(self, event: str) -> None:
        if self._task is None or self._task.done():
            return
        self._messages.put_nowait({"type": f"lifespan.{event}"})
        reply = asyncio.create_task(self._replies.get())
        await asyncio.wait({self._task, reply}, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            reply.cancel()
        elif reply.result()["type"] == f"lifespan.{event}.failed":
            raise RuntimeError(f"The application's {event} has failed: {reply.result().get('message', '')}")
