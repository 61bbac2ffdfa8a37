"""The worker's end of the socket: blocking, because a worker has nothing else to do while it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.wire.frames import FrameReader, encode, to_worker_decoder

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from modelserver.wire.messages import ToServer, ToWorker

_CHUNK = 1 << 18
_MAX_PIECES = 512


class ServerChannel:
    """Receives the server's messages and sends answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader: FrameReader[ToWorker] = FrameReader(to_worker_decoder)

    def messages(self) -> Iterator[tuple[ToWorker, memoryview]]:
        """Each message with the bytes behind it (valid until the next); ends when the server closes."""
        while data := self._connection.recv(_CHUNK):
            yield from self._reader.feed(data)

    def send(self, message: ToServer, bodies: Sequence[bytes] = ()) -> None:
        """Writes one frame, whole."""
        pieces = encode(message, bodies)
        if len(pieces) == 1:
            self._connection.sendall(pieces[0])
            return
        for start in range(0, len(pieces), _MAX_PIECES):
            self._send_all(pieces[start : start + _MAX_PIECES])

    def _send_all(self, pieces: list[bytes]) -> None:
        views = [memoryview(piece) for piece in pieces if piece]
        while views:
            sent = self._connection.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]
