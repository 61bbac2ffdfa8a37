"""Tells those who want to know what becomes of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from modelserver.errors import ModelServerError
from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.statuses import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelserver.engine.batching.request import Request
    from modelserver.ext.grpc.call import Call
    from modelserver.ext.grpc.messages import AnyMessage
    from modelserver.ext.grpc.statuses import Tell


class Watcher:
    """Learns what becomes of one request, each of a stream of messages for itself.

    Here, nothing is done about that.
    """

    __slots__ = ()

    def queued(self, request: Request) -> None:
        """It is about to be queued as this request."""

    def sent(self, part: AnyMessage) -> None:
        """A part of its answer is about to be sent."""

    def answered(self, answer: AnyMessage | None, request: Request, batch_id: str | None) -> None:
        """The whole answer, None for one in parts; ``batch_id`` if the client is told one."""

    def failed(self, code: StatusCode, text: str) -> None:
        """The call ends with this status, or the stream has an answer with it."""

    def left(self) -> None:
        """The client is gone, or its deadline is over."""


Watch: TypeAlias = "Callable[[str, AnyMessage, Call], Watcher | None]"
"""From a path, a request and its call to who wants to know what becomes of it, if anybody does."""


class Watched:
    """The watchers of a request, as a context: an error that leaves it is the request's."""

    __slots__ = ("_tell", "_watchers")

    def __init__(self, watchers: Sequence[Watcher], tell: Tell) -> None:
        self._watchers = watchers
        self._tell = tell

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if error is None:
            return
        for watcher in self._watchers:
            if isinstance(error, ModelServerError):
                watcher.failed(*self._tell(error))
            elif isinstance(error, Exception):
                watcher.failed(StatusCode.INTERNAL, FAILED)
            else:
                watcher.left()

    def queued(self, request: Request) -> None:
        """See :class:`Watcher`."""
        for watcher in self._watchers:
            watcher.queued(request)

    def sent(self, part: AnyMessage) -> None:
        """See :class:`Watcher`."""
        for watcher in self._watchers:
            watcher.sent(part)

    def answered(self, answer: AnyMessage | None, request: Request, batch_id: str | None = None) -> None:
        """See :class:`Watcher`."""
        for watcher in self._watchers:
            watcher.answered(answer, request, batch_id)


class Watches:
    """What a service asks for each request; ``tell`` maps its errors to statuses."""

    def __init__(self, watches: Sequence[Watch], tell: Tell) -> None:
        self._watches = watches
        self._tell = tell
        self._nobody = Watched((), tell)

    def begin(self, path: str, asked: AnyMessage, call: Call) -> Watched:
        """The watchers of a request that has come."""
        if not self._watches:
            return self._nobody
        found = (watch(path, asked, call) for watch in self._watches)
        return Watched([watcher for watcher in found if watcher is not None], self._tell)
