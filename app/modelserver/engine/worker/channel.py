"""The worker's end of the socket; blocking, as a worker has nothing else to do while waiting."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, Protocol, TypeAlias

from modelserver.engine.wire.arena import Arena, Turns
from modelserver.engine.wire.frames import FrameReader, encode, to_worker_decoder
from modelserver.engine.wire.messages import Pong, Proceed, Returned, ToServer, ToWorker

_CHUNK = 1 << 18
_MAX_PIECES = 512


class Connection(Protocol):
    """What a channel uses of a socket."""

    @property
    def family(self) -> int: ...

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview, size: int = 0, flags: int = 0, /) -> int: ...

    def sendall(self, data: bytes, /) -> None: ...

    def sendmsg(self, pieces: Iterable[memoryview], /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...


Dial: TypeAlias = Callable[[bytes], Connection]


def _end_child() -> NoReturn:
    os.write(2, b"A process forked by the handler returned from the handler's call; it is ended.\n")
    os._exit(1)


class ServerChannel:
    """Receives the server's messages and sends answers.

    ``connection`` leads to the server, or to whoever sends that by which ``dial`` connects to it, before the
    first message. Memory that comes beside the first bytes is shared with the server if it is on this
    machine; if not, it only says who has a batch.
    """

    def __init__(self, connection: socket.socket, dial: Dial | None = None) -> None:
        self._connection: Connection = connection
        self._parent = connection
        self._dial = dial
        self._arena: Arena | None = None
        self._turns: Turns | None = None
        self._reader: FrameReader[ToWorker] = FrameReader(to_worker_decoder)
        self._small = memoryview(bytearray(_CHUNK))
        self._feeding: Iterator[tuple[ToWorker, memoryview]] = iter(())
        self._ahead: deque[tuple[ToWorker, memoryview]] = deque()
        self._sending = threading.Lock()
        self.is_open = True

    def fileno(self) -> int:
        return self._connection.fileno()

    def messages(self) -> Iterator[tuple[ToWorker, memoryview]]:
        """Each message with the bytes after it (valid until the next); ends when the server closes."""
        data, arena = Arena.receive(self._parent, _CHUNK)
        self.is_open = bool(data)
        if self._dial is None:
            self._feeding = self._reader.feed(data)
        else:
            self._parent.close()
            self._connection = self._dial(data)
        if arena is not None:
            self._turns = arena.turns()
            if self._connection.family == socket.AF_UNIX:
                self._arena, self._reader.arena = arena, arena.incoming
        while self.is_open:
            for item in self._feeding:
                yield item
                while self._ahead:
                    yield self._ahead.popleft()
            self._receive(0)

    def begin(self, sequence: int) -> bool:
        """Marks the batch as begun, so it is not run elsewhere; False if the server has taken it back."""
        begins = self._turns is None or self._turns.begin(sequence)
        if begins is None:
            self.send(Returned(sequence))
        return bool(begins)

    def take(self, *, wait: bool) -> Iterator[tuple[ToWorker, memoryview]]:
        """The messages received so far; if there are none, ``wait`` blocks for one read.

        Only after the first message. ``is_open`` says whether more may come.
        """
        wait = wait and not self._ahead
        while self._ahead:
            yield self._ahead.popleft()
        yield from self._pull(wait=wait)

    def _pull(self, *, wait: bool) -> Iterator[tuple[ToWorker, memoryview]]:
        for item in self._feeding:
            wait = False
            yield item
        self._receive(0 if wait else socket.MSG_DONTWAIT)
        yield from self._feeding

    def look(self) -> list[ToWorker]:
        """The messages received so far that :meth:`messages` will still return.

        For the thread that takes the messages. Invalidates the bytes after the last message.
        """
        self._read_ahead(wait=False)
        return [message for message, _ in self._ahead]

    def await_proceed(self) -> None:
        """Waits for the server's :class:`Proceed`, which is removed, or for the end of the connection."""
        while True:
            for position, (message, _) in enumerate(self._ahead):
                if isinstance(message, Proceed):
                    del self._ahead[position]
                    return
            if not self.is_open:
                return
            self._read_ahead(wait=True)

    def _read_ahead(self, *, wait: bool) -> None:
        for message, tail in self._pull(wait=wait):
            self._ahead.append((message, memoryview(bytes(tail))))

    def _receive(self, flags: int) -> None:
        reader, small = self._reader, self._small
        room = reader.room()
        try:
            count = self._connection.recv_into(small if room is None else room, 0, flags)
        except BlockingIOError:
            return
        self.is_open = count > 0
        self._feeding = reader.feed(small[:count]) if room is None else reader.filled(count)

    def close(self) -> None:
        """Closes the connection, even while a thread reads from it: the process may end much later."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def disown(self) -> None:
        """For a process forked by user code, which must not answer for the worker (F45).

        It finds the connection closed, and ends if it returns from the handler.
        """
        self._arena = None
        self.send = lambda message, bodies=(): _end_child()  # type: ignore[method-assign]
        dead_end, other = socket.socketpair()
        other.close()
        os.dup2(dead_end.fileno(), self._connection.fileno())
        dead_end.close()

    def send(self, message: ToServer, bodies: Sequence[bytes] = ()) -> None:
        """Writes one frame, whole; any thread may."""
        arena = self._arena
        with self._sending:
            pieces = encode(message, bodies, arena.outgoing if arena is not None else None)
            if not bodies and isinstance(message, Pong):
                # The server only pings idle workers.
                self._reader.trim()
                if arena is not None:
                    arena.trim()
            if len(pieces) == 1:
                self._connection.sendall(pieces[0])
                return
            views = [memoryview(piece) for piece in pieces if piece]
            while views:
                sent = self._connection.sendmsg(views[:_MAX_PIECES])
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]
