"""``GET /events``: pages of the events, and a stream of those to come."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from pydantic import BaseModel, Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response, StreamingResponse
from typing_extensions import TypedDict

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.events.records import ServerEvent
from modelserver.ext.events.store import LEVELS, EventStore, Query
from modelserver.surface.api.services import Services
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.http.answers import JSON

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application

# Those who wait for the next event.


class Followers:
    """Any number of tasks; ``loop`` runs them, and :meth:`wake` may be called in any thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closed = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_called = False

    def next_event(self) -> asyncio.Future[None]:
        """Done when there is a new event from now on, or all streams are to end."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed:
            waiting.set_result(None)
        else:
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
        return waiting

    def wake(self) -> None:
        """There is a new event; a storm wakes once in a turn of the loop."""
        if self.loop is None or self._is_called:
            return
        self._is_called = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)

    def close(self) -> None:
        """Ends all streams."""
        self.closed = True
        self._wake()


MOST_ON_A_PAGE: Final = 1000
MOST_STREAMS: Final = 64
# Seconds without an event until a stream has a sign of life, and checks its token.
QUIET: Final = 15.0
SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?Z?")
_encode = msgspec.json.Encoder().encode


class EventQuery(BaseModel):
    """Which events."""

    since: Annotated[
        str, Field(None, description="Only newer ones: an id, or a time in UTC such as `2026-05-30T21:46`.")
    ]
    before: Annotated[int, Field(None, description="Only those before this id; for the page before.")]
    model: Annotated[str, Field(None, description="Of this model or workflow.")]
    kind: Annotated[str, Field(None, description="Of this kind, such as `load_failed`.")]
    level: Annotated[Literal[LEVELS], Field("info", description="Of this level or above.")]  # type: ignore[valid-type]
    q: Annotated[str, Field(None, description="Whose kind, model or message has this text.")]
    limit: Annotated[int, Field(100, description=f"At most so many, up to {MOST_ON_A_PAGE}.")]
    follow: Annotated[
        bool,
        Field(
            False,
            description="Go on with each new one: server-sent events if `Accept` has them, else a line each.",
        ),
    ]


class EventDocument(TypedDict, total=False):
    """Something that has happened."""

    id: Annotated[int, Field(description="One more than that of the event before.")]
    time: str
    level: Literal["info", "warn", "error"]
    kind: str
    message: str
    model: str
    version: str
    attempt: Annotated[int, Field(description="How many loads have failed in a row.")]


class EventPage(TypedDict):
    """Some events, in the order in which they happened."""

    events: list[EventDocument]
    last: Annotated[int, Field(description="The id of the newest event that there is.")]
    leftOut: Annotated[int, Field(description="Events of storms that were only counted, since the start.")]


def read_query(query: Mapping[str, str]) -> tuple[Query, int]:
    """Which events, and how many at most. Raises BadRequest."""
    since = query.get("since", "")
    is_time = bool(_TIME.fullmatch(since))
    level = query.get("level", "info")
    if level not in LEVELS:
        raise BadRequest(f"level={level[:40]}: one of {', '.join(LEVELS)} is needed")
    return Query(
        since=None
        if is_time or not since
        else _number("since", since, "an id or a time such as 2026-05-30T21:46"),
        before=_number("before", query["before"]) if "before" in query else None,
        since_time=since.removesuffix("Z") if is_time else "",
        model=query.get("model", ""),
        kind=query.get("kind", ""),
        level=level,
        text=query.get("q", "").lower(),
    ), min(MOST_ON_A_PAGE, max(1, _number("limit", query.get("limit", "100"))))


def _number(name: str, text: str, needed: str = "a whole number") -> int:
    if re.fullmatch(r"\d{1,15}", text) is None:
        raise BadRequest(f"{name}={text[:40]}: {needed} is needed")
    return int(text)


def add_routes(app: Application, services: Services, store: EventStore, followers: Followers) -> None:
    """Adds the route; the management token was checked before."""
    streams: set[object] = set()

    async def events(request: Request) -> Response:
        query, limit = read_query(request.query_params)
        if request.query_params.get("follow", "false").lower() != "true":
            page = {"events": store.page(query, limit), "last": store.last, "leftOut": store.left_out}
            return Response(_encode(page), media_type=JSON, headers={"cache-control": "no-store"})
        if len(streams) >= MOST_STREAMS:
            raise ServiceUnavailable(f"{MOST_STREAMS} streams of events are open already.")
        is_sse = SSE in request.headers.get("accept", "")
        last_id = request.headers.get("last-event-id", "")
        if is_sse and re.fullmatch(r"\d{1,15}", last_id):
            query = msgspec.structs.replace(query, since=int(last_id))
        encode = _as_sse if is_sse else _as_line
        lines = Stream(store, followers, encode, allowed(request, services)).lines(query, limit)
        return StreamingResponse(
            _counted(lines, streams),
            media_type=SSE if is_sse else NDJSON,
            headers={"cache-control": "no-store"},
        )

    content = {each: {"schema": {"type": "string"}} for each in (SSE, NDJSON)}
    app.section("Management")(
        events,
        "get /events",
        "events",
        "What has happened: the last events, or those since one, or as a stream.",
        EventPage,
        (400, 503),
        query=EventQuery,
        more={"responses": {"200": {"content": content}}},
    )


def allowed(request: Request, services: Services) -> Callable[[], bool]:
    """Whether the request's token is still valid; a stream may outlast it."""
    tokens = services.tokens
    if tokens is None:
        return lambda: True
    header = request.headers.get("authorization", "").encode("latin-1")
    return lambda: tokens.verifier.accepts(Scope.MANAGEMENT, header)


@dataclass(frozen=True, slots=True)
class Stream:
    """The events of a page, and each that follows, while ``is_allowed``; None is encoded as a sign of life.

    Nothing waits for a client that reads slowly: it goes on after the last event that it got, and misses
    those that are no longer kept.
    """

    store: EventStore
    followers: Followers
    encode: Callable[[ServerEvent | None], bytes]
    is_allowed: Callable[[], bool]
    quiet: float = QUIET

    async def lines(self, query: Query, limit: int) -> AsyncIterator[bytes]:
        """Yields the lines of the response."""
        clock = asyncio.get_running_loop().time
        newest, page = self.store.last, self.store.page(query, limit)
        due = clock() + self.quiet
        while True:
            if page:
                yield b"".join(self.encode(each) for each in page)
                due = clock() + self.quiet
            elif clock() >= due:
                yield self.encode(None)
                due = clock() + self.quiet
            if self.followers.closed or not self.is_allowed():
                return
            # A full page may have left others behind it.
            is_full = query.since is not None and len(page) == limit
            since = page[-1].id if is_full else newest
            query = msgspec.structs.replace(query, since=since, before=None)
            following = self.followers.next_event()
            newest, page = self.store.last, self.store.page(query, limit)
            if newest == since:
                await asyncio.wait({following}, timeout=max(0.0, due - clock()))
                newest, page = self.store.last, self.store.page(query, limit)
            following.cancel()


async def _counted(lines: AsyncIterator[bytes], streams: set[object]) -> AsyncIterator[bytes]:
    streams.add(lines)
    try:
        async for each in lines:
            yield each
    finally:
        streams.discard(lines)


def _as_sse(event: ServerEvent | None) -> bytes:
    return b":\n\n" if event is None else b"id: %d\ndata: %s\n\n" % (event.id, _encode(event))


def _as_line(event: ServerEvent | None) -> bytes:
    return b"\n" if event is None else _encode(event) + b"\n"
