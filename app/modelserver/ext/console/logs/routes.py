"""``GET /console/logs``: pages of the log's last lines, and a stream of those to come."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.console.logs.lines import LEVELS, REQUESTS, SOURCES, LineQuery, LogLine
from modelserver.ext.console.pages import DATA_HEADERS
from modelserver.surface.http.answers import JSON

if TYPE_CHECKING:
    from starlette.requests import Request

    from modelserver.ext.console.logs.ring import LogRing

MOST_ON_A_PAGE: Final = 500
MOST_STREAMS: Final = 64
# Of one request id, which clients may use again.
MOST_ANSWERS: Final = 5
# Seconds from one look for new lines to the next, and without one until a stream has a sign of life.
PAUSE: Final = 0.5
QUIET: Final = 10.0

_encode = msgspec.json.Encoder().encode


class LogRoute:
    """Answers with lines of ``ring``; ``versions_of`` returns the versions of a model.

    A viewer that reads slowly gets the newest lines when it reads, and misses others.
    """

    def __init__(self, ring: LogRing, versions_of: Callable[[str], tuple[str, ...]]) -> None:
        self._ring = ring
        self._versions_of = versions_of
        self._closing = asyncio.Event()
        self._streams: set[object] = set()

    async def respond(self, request: Request, allowed: Callable[[], bool]) -> Response:
        """A page, or with ``follow=true`` a stream while it is ``allowed``. Raises BadRequest."""
        query, limit = read_query(request.query_params)
        query = msgspec.structs.replace(query, versions=self._versions_of(query.model))
        if request.query_params.get("follow") == "true":
            if len(self._streams) >= MOST_STREAMS:
                raise ServiceUnavailable(f"{MOST_STREAMS} streams of log lines are open already.")
            stream = self.follow(query, limit, allowed)
            return StreamingResponse(stream, headers={**DATA_HEADERS, "content-type": "text/event-stream"})
        content = await asyncio.to_thread(self._page, query, limit)
        return Response(content, headers={**DATA_HEADERS, "content-type": JSON})

    def close(self) -> None:
        """Ends all streams."""
        self._closing.set()

    def _page(self, query: LineQuery, limit: int) -> bytes:
        last = self._ring.last
        page: dict[str, Any] = {"lines": self._ring.page(query, limit), "last": last}
        if query.text:
            page["answers"] = self._answers(query.text)
        return _encode(page)

    def _answers(self, request_id: str) -> list[LogLine]:
        """The lines of the access log about this request, if the text is the id of one."""
        lines = self._ring.page(LineQuery(sources=(REQUESTS,), text=request_id), MOST_ON_A_PAGE)
        return [line for line in lines if line.request.lower() == request_id.lower()][-MOST_ANSWERS:]

    def _news(self, query: LineQuery, limit: int, last: int) -> tuple[list[bytes], int]:
        """Events with lines, and with all answers to the request if one is new, and the id of the last line.

        The line of an answer is written up to a quarter of a second after it (AccessLog).
        """
        news: list[Any] = [lines] if (lines := self._ring.page(query, limit)) else []
        answers = self._answers(query.text) if query.text else []
        if answers and answers[-1].id > query.since:
            news.append({"answers": answers})
        return [b"data: %s\n\n" % _encode(each) for each in news], max(last, lines[-1].id if lines else 0)

    async def follow(
        self,
        query: LineQuery,
        limit: int,
        allowed: Callable[[], bool],
        pause: float = PAUSE,
        quiet: float = QUIET,
    ) -> AsyncIterator[bytes]:
        """Events with the lines after ``query.since``, several in each, and with new answers to a request."""
        clock, me = asyncio.get_running_loop().time, object()
        self._streams.add(me)
        due = clock()
        try:
            while not self._closing.is_set() and allowed():
                last = self._ring.last
                news: list[bytes] = []
                if last > query.since:
                    news, last = await asyncio.to_thread(self._news, query, limit, last)
                for each in news or ([b":\n\n"] if clock() >= due else []):
                    yield each
                    due = clock() + quiet
                query = msgspec.structs.replace(query, since=max(last, query.since))
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause)
        finally:
            self._streams.discard(me)


def read_query(query: Mapping[str, str]) -> tuple[LineQuery, int]:
    """Which lines, and how many at most. Raises BadRequest."""
    level, source = query.get("level", "debug"), query.get("source", "all")
    if level not in LEVELS:
        raise BadRequest(f"level={level[:40]}: one of {', '.join(LEVELS)} is needed")
    sources = SOURCES if source == "all" else tuple(source.split(","))
    if not set(sources) <= set(SOURCES):
        raise BadRequest(f"source={source[:40]}: all, or some of {', '.join(SOURCES)} are needed")
    return LineQuery(
        since=_number("since", query.get("since", "0")),
        before=_number("before", query["before"]) if "before" in query else None,
        sources=sources,
        model=query.get("model", ""),
        level=level,
        text=query.get("q", ""),
    ), min(MOST_ON_A_PAGE, max(1, _number("limit", query.get("limit", "200"))))


def _number(name: str, text: str) -> int:
    if re.fullmatch(r"\d{1,15}", text) is None:
        raise BadRequest(f"{name}={text[:40]}: a whole number is needed")
    return int(text)
