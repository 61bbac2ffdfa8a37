"""The server's side of a recording: it copies requests and responses for the one client that records.

Each call is encoded when it ends, and a few times a second the server sends the client what it has collected.
Calls that the client does not read in time are dropped and counted: memory is bounded, and no request waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from modelserver import __version__
from modelserver.errors import BadRequest, Conflict
from modelserver.ext.recording.entries import CALL, Beginning, Ended, Entry, Lost, framed, framed_list, pack
from modelserver.models.settings.checks import header_fault
from modelserver.surface.watching import Watched, Watcher

# Headers of requests that decide how a body is read and a response is written.
HEADERS: Final = (
    "accept",
    "content-encoding",
    "content-type",
    "inference-header-content-length",
    "x-envoy-expected-rq-timeout-ms",
    "x-request-timeout-ms",
)
# Bytes of calls, and calls, that wait for the client; parts of responses that have not ended are among the
# bytes. They count as outgoing bytes, of which they may be this share.
MOST_BYTES: Final = 1 << 26
SHARE: Final = 4
MOST_CALLS: Final = 20_000
# Bytes of one request with its answer.
LARGEST: Final = 1 << 25
# Bytes of one frame, roughly.
_PIECE: Final = 1 << 20
# Bytes of a frame that are written at once.
_PART: Final = 1 << 18
_PAUSE: Final = 0.2
_MOST_NAMES: Final = 1000

_encode = msgspec.msgpack.Encoder().encode
_random = Random().random  # noqa: S311 - for samples, no secret
# Seconds without a frame after which an empty one shows whether the client is still there.
_SIGN_OF_LIFE: Final = 0.3
# Seconds that a recording waits for the answers to requests it has begun.
_GRACE: Final = 10.0
_SERVER_TIMING: Final = b"server-timing: "
_BATCH: Final = b"x-batch-id: "


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """What a client wants to record.

    ``models``: their names, empty for all. ``headers``: of requests, besides :data:`HEADERS`, in lower case.
    ``sample``: the share of requests. ``seconds`` and ``requests`` are limits.

    Raises BadRequest for values out of bounds, and for headers that cannot be or hold credentials.
    """

    models: frozenset[str] = frozenset()
    headers: tuple[str, ...] = ()
    sample: float = 1.0
    seconds: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 1:
            raise BadRequest(f"sample={self.sample:g}: a share above 0, at most 1, is needed.")
        if self.seconds is not None and not self.seconds > 0:
            raise BadRequest(f"seconds={self.seconds:g}: a positive number is needed.")
        if self.requests is not None and self.requests < 1:
            raise BadRequest(f"requests={self.requests}: a positive number is needed.")
        for name in self.headers:
            if fault := header_fault(name, "the name of a header is", "recorded"):
                raise BadRequest(f"header={name[:100]}: {fault}.")


class Recorder:
    """Has at most one recording, which ``now`` is, otherwise None.

    ``count`` is called with the bytes that it has more, or less; it has at most ``most``.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        count: Callable[[int], None] = lambda _: None,
        most: int = MOST_BYTES,
    ) -> None:
        self.now: LiveRecording | None = None
        self.clock = clock
        self.count = count
        self.most = min(MOST_BYTES, most)
        self._closed = False

    def start(self, options: RecordingOptions) -> LiveRecording:
        """Starts to record. Raises Conflict if somebody else records."""
        if self.now is not None or self._closed:
            raise Conflict("Another client is recording; its recording must end first.")
        self.now = LiveRecording(options, self)
        return self.now

    def watch(self, watched: Watched) -> Recorded | None:
        """Records the request if somebody records those of its model, which may not be known yet."""
        recording, model = self.now, watched.target.route.model
        if recording is None:
            return None
        is_known = bool(model) or not recording.options.models
        return None if is_known and not recording.accepts(model) else Recorded(watched, recording, is_known)

    def close(self) -> None:
        self._closed = True
        if self.now is not None:
            self.now.finish("the server stopped", wait=False)


class LiveRecording:
    """What one client records; ``headers`` says which headers of a request."""

    def __init__(self, options: RecordingOptions, recorder: Recorder) -> None:
        self.clock = recorder.clock
        self.began = recorder.clock()
        self.options = options
        self._recorder = recorder
        self.headers = RecordedHeaders({*HEADERS, *options.headers})
        # Encoded calls, and the bytes of the last piece.
        self._pieces: list[list[bytes]] = [[]]
        self._size = 0
        self._calls = self._bytes = 0
        self._queued = 0
        self._pending = self._taken = 0
        self._full = self._large = 0
        self._reason = ""
        self._deadline = 0.0
        self._reported_loss = Lost()
        self._urgent = asyncio.Event()
        self._closed = False

    def accepts(self, model: str) -> bool:
        """Whether a request for the model, which has just arrived, is recorded."""
        options = self.options
        if self._reason or (options.models and model not in options.models):
            return False
        if options.sample < 1 and _random() >= options.sample:
            return False
        self._pending += 1
        self._taken += 1
        if self._taken == options.requests:
            self.finish(f"the limit of {options.requests} was reached")
        return True

    def queued(self) -> int:
        """The place of a request, which is about to be queued, in the order of all."""
        self._queued += 1
        return self._queued

    def hold(self, nbytes: int) -> bool:
        """Counts bytes of an answer that has not ended; False if there is no room."""
        if self._closed or self._bytes + nbytes > self._recorder.most:
            return False
        self.count(nbytes)
        return True

    def count(self, nbytes: int) -> None:
        """The recording has so many bytes more; negative: fewer."""
        if not self._closed:
            self._bytes += nbytes
            self._recorder.count(nbytes)

    def drop(self) -> None:
        """A call has ended, for whose answer there was no room."""
        self._pending -= 1
        self._full += 1

    def add(self, fields: tuple[object, ...], nbytes: int) -> None:
        """The call with these fields has ended, with so many bytes of body and answer.

        It is dropped if too much waits for the client.
        """
        self._pending -= 1
        if nbytes > LARGEST:
            self._large += 1
        elif self._calls >= MOST_CALLS or self._bytes + nbytes > self._recorder.most:
            self._full += 1
        else:
            # Encoded at once, while all of it is in the processor's cache; nothing else of the call stays in
            # memory.
            content = _encode(fields)
            self._pieces[-1].append(content)
            self._size += len(content)
            self._calls += 1
            # It includes the headers and the query, which may be most of it.
            self.count(len(content))
            if self._size > _PIECE:
                self._pieces.append([])
                self._size = 0
                self._urgent.set()

    def finish(self, reason: str, *, wait: bool = True) -> None:
        """Records no further requests, and ends, if it is to ``wait`` when those begun are answered."""
        if not self._reason:
            self._reason = reason
            self._deadline = time.monotonic() + (_GRACE if wait else 0.0)
            self._urgent.set()

    def close(self) -> None:
        """Stops recording, as the client has left."""
        self.count(-self._bytes)
        self._closed = True
        self._recorder.now = None

    async def frames(self) -> AsyncIterator[bytes]:
        """Everything that is recorded, until its end."""
        options, started = self.options, time.monotonic()
        began = Beginning(
            time.time(), __version__, sorted(options.models), self.headers.names, options.sample
        )
        yield framed(pack([began]))
        sent_at = started
        while True:
            # Computed before the last calls are collected, so that none is left behind.
            over = bool(self._reason) and (not self._pending or time.monotonic() >= self._deadline)
            entries: list[Entry] = []
            if (lost := Lost(self._full, self._large)) != self._reported_loss:
                entries, self._reported_loss = [lost], lost
            if entries or time.monotonic() - sent_at > _SIGN_OF_LIFE:
                sent_at = time.monotonic()
                yield framed(pack(entries))
            for frame in self._collected():
                for at in range(0, len(frame), _PART):
                    # Large bodies are copied again when they are written: other tasks run in between.
                    await asyncio.sleep(0)
                    yield frame[at : at + _PART]
            if over:
                yield framed(pack([Ended(self._reason)]))
                return
            if options.seconds is not None and time.monotonic() - started >= options.seconds:
                self.finish(f"{options.seconds:g} seconds are over")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), _PAUSE)
                self._urgent.clear()

    def _collected(self) -> Iterator[bytes]:
        """What was collected, as frames; what has not been sent yet still counts as waiting."""
        pieces, self._pieces, self._size = self._pieces, [[]], 0
        for calls in filter(None, pieces):
            yield framed_list(calls)
            self._calls -= len(calls)
            self.count(-sum(map(len, calls)))


class RecordedParts:
    """The parts of a response: they stay here until its end, unless they become too large.

    Their bytes count as waiting in the ``recording``. ``count`` and ``sent``: all parts and their bytes;
    ``is_lost``: there was no room for them.
    """

    __slots__ = ("_parts", "_recording", "count", "is_lost", "sent")

    def __init__(self, recording: LiveRecording) -> None:
        self._recording = recording
        # Not a list: small parts would take many times their size.
        self._parts: bytearray | None = bytearray()
        self.count = self.sent = 0
        self.is_lost = False

    def add(self, part: bytes) -> None:
        """Keeps a part."""
        self.count += 1
        self.sent += len(part)
        if self._parts is None:
            return
        if self.sent > LARGEST:
            self.drop()
        elif not self._recording.hold(len(part)):
            self.is_lost = True
            self.drop()
        else:
            self._parts += part

    def drop(self) -> None:
        """Keeps none any more."""
        parts, self._parts = self._parts, None
        if parts:
            self._recording.count(-len(parts))

    def take(self) -> bytes:
        """Returns them as one, and keeps none any more."""
        whole = bytes(self._parts or b"")
        self.drop()
        return whole


class Recorded(Watcher):
    """A request that is recorded when it has been answered, or when its client has left."""

    __slots__ = (
        "_at",
        "_body",
        "_is_accepted",
        "_lines",
        "_model",
        "_number",
        "_parts",
        "_recording",
        "_status",
        "_type",
        "_watched",
    )

    def __init__(self, watched: Watched, recording: LiveRecording, is_accepted: bool) -> None:
        self._watched = watched
        self._recording = recording
        self._at = recording.clock()
        # The endpoint replaces the exchange's by an inflated one.
        self._body = watched.body
        # Empty where neither path nor, so far, anything else names one.
        self._model = watched.target.route.model
        self._number = 0
        self._is_accepted = is_accepted
        self._parts: RecordedParts | None = None

    def queued(self, request: Any, model: Any) -> None:
        self._is_accepted = self._is_accepted or self._recording.accepts(model.name)
        self._number = self._recording.queued()
        if not self._model:
            self._model = model.name

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        complete = True
        if not self._is_accepted:
            # Refused before it was queued; its model may be known by now.
            self._is_accepted = self._recording.accepts(self._watched.target.route.model)
        if self._parts is not None:
            # The request has failed after some of them.
            if self._drops():
                return
            complete = False
        elif status == 200:
            body = self._watched.framed(body)
        self._add(status, body, content_type, lines, complete=complete)

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        self._status, self._type, self._lines = status, content_type, lines
        self._parts = RecordedParts(self._recording) if self._is_accepted else None

    def part(self, part: bytes) -> None:
        if self._parts is not None:
            self._parts.add(self._watched.framed(part))

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        parts = self._parts
        if parts is None or parts.is_lost:
            if self._is_accepted:
                self._recording.drop()
            return
        answer, lines = parts.take(), self._lines + lines
        self._add(self._status, answer, self._type, lines, parts.sent, parts.count, complete=complete)

    def left(self) -> None:
        if self._watched.is_rpc:
            if not self._drops():
                self._add(0, b"", "", b"", complete=False)
        elif self._parts is not None:
            self.ended(False)
        else:
            self._add(0, b"", "", b"")

    def _drops(self) -> bool:
        """Keeps no parts; whether there was no room for them, so that the request is lost."""
        parts = self._parts
        if parts is None:
            return False
        parts.drop()
        if parts.is_lost:
            self._recording.drop()
        return parts.is_lost

    def _add(  # noqa: PLR0917 - called for each request
        self,
        status: int,
        answer: bytes,
        content_type: str,
        lines: bytes,
        sent: int = 0,
        parts: int = 0,
        *,
        complete: bool = True,
    ) -> None:
        """``parts``: how many the answer came in, with ``sent`` bytes."""
        if not self._is_accepted:
            return
        recording, watched, body = self._recording, self._watched, self._body
        target, recorded = watched.target, recording.headers
        text, headers = target.text, [pair for pair in watched.headers if recorded[pair[0]]]
        if watched.is_rpc:
            # A request of a stream is sent again alone.
            text, content_type = text.removesuffix("2"), "application/grpc"
            if watched.deadline_ms:
                headers.append((b"grpc-timeout", b"%dm" % watched.deadline_ms))
        recording.add(
            (
                CALL,
                self._number,
                self._at - recording.began,
                recording.clock() - self._at,
                watched.method,
                text,
                self._model or target.route.model or None,
                target.route.version,
                headers,
                body,
                status,
                content_type,
                _batch_and_timing(lines),
                answer,
                parts,
                complete,
            ),
            len(body) + (sent or len(answer)),
        )


class RecordedHeaders(dict[bytes, bool]):
    """Whether a header is recorded, by its name as clients write it."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = sorted(names)
        self._names = frozenset(name.encode() for name in names)

    def __missing__(self, name: bytes) -> bool:
        is_recorded = name.lower() in self._names
        # Clients choose the names.
        if len(self) < _MOST_NAMES:
            self[name] = is_recorded
        return is_recorded


def _batch_and_timing(lines: bytes) -> bytes:
    """The header lines about batch and timing, which come before those of the handler; gRPC's status too."""
    timing = lines.find(_SERVER_TIMING)
    if timing >= 0 and lines.startswith(_BATCH):
        return lines[: lines.find(b"\r\n", timing)]
    starts = (_BATCH, b"x-batch-size: ", _SERVER_TIMING, b"grpc-status: ")
    return b"\r\n".join(line for line in lines.split(b"\r\n") if line.startswith(starts))
