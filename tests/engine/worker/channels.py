"""The service of a worker, and its channel where the server is a test."""

import socket
from collections.abc import Sequence
from typing import Any

from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder
from modelserver.engine.wire.messages import Load, Ping, Predict, Row, ToServer
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.service import Service
from modelserver_handlers.context import Context
from modelserver_handlers.metrics.collected import HandlerMetrics


def service_of(entry, batch_size=8, **load) -> Service:
    metrics = HandlerMetrics("m")
    context = Context("m", "/", None, batch_size, None, "0", metrics=metrics)
    return Service(entry, context, Load("m", "1", "/", "h", batch_size, **load), metrics)


class Channel:
    """Keeps what is sent, and the batches that were begun; not those of ``taken_back``."""

    def __init__(self) -> None:
        self.sent: list[tuple[ToServer, list[bytes]]] = []
        self.started: list[int] = []
        self.taken_back: set[int] = set()
        self.is_closed = False

    def begin(self, sequence: int) -> bool:
        if sequence in self.taken_back:
            return False
        self.started.append(sequence)
        return True

    def send(self, message: ToServer, bodies: Sequence[bytes] = (), loop: Any = None) -> None:
        self.sent.append((message, list(bodies)))

    def close(self) -> None:
        self.is_closed = True


class Connection:
    """A worker's channel, whose first message is read, and the server's end of its socket."""

    def __init__(self) -> None:
        self.server, self.end = socket.socketpair()
        self.channel = ServerChannel(self.end)
        self.received: list[tuple[ToServer, bytes]] = []
        self._reader = FrameReader(to_server_decoder)
        # The runtime reads the model first.
        self.send(Ping())
        next(self.channel.messages())

    def send(self, message: Any, *rows: bytes) -> None:
        self.server.sendall(b"".join(encode(message, rows)))

    def ask(self, sequence: int, name: str = "", body: bytes = b"1", content_type="application/json") -> None:
        """Sends a batch of one row."""
        row = Row(name or f"id{sequence}", len(body), content_type=content_type)
        self.send(Predict(sequence, [row]), body)

    def take(self, data: bytes) -> None:
        """Adds the messages of what has arrived at the server's end."""
        self.received += [(message, bytes(tail)) for message, tail in self._reader.feed(data)]
