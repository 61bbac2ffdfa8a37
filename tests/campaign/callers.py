"""Clients over raw connections: they see every byte that comes back, so an answer too many too."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from dataclasses import dataclass

from tests.e2e.raw import HOST, post

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d+\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_ANSWERED_BY_NOTHING = (204, 304)


class Malformed(Exception):
    """What came is no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``closes``: the connection ends with it; ``retry_after``: a request may come later."""

    status: int
    body: bytes
    closes: bool
    retry_after: bool


def take_answer(received: bytearray, *, ended: bool = False, head: bool = False) -> Answer | None:
    """Takes the first answer out of what was received; None while it is not whole.

    ``ended``: nothing more will come. ``head``: it answers a HEAD. What comes before an answer (1xx) is
    passed over. Raises Malformed.
    """
    while True:
        end = received.find(b"\r\n\r\n")
        if end < 0:
            if ended and received:
                raise Malformed(bytes(received[:200]))
            return None
        lines = bytes(received[: end + 4])
        first = _STATUS.match(lines)
        if first is None:
            raise Malformed(lines[:200])
        status = int(first[1])
        if status >= 200:
            break
        del received[: end + 4]
    length, chunked = _LENGTH.search(lines), _CHUNKED.search(lines)
    if head or status in _ANSWERED_BY_NOTHING:
        body, size = b"", 0
    elif length is not None and chunked is None:
        size = int(length[1])
        body = bytes(received[end + 4 : end + 4 + size])
    elif chunked is not None and length is None:
        taken = _dechunked(received, end + 4)
        body, size = (b"", len(received)) if taken is None else taken
    else:
        raise Malformed(lines[:300])
    if len(received) < end + 4 + size:
        if ended:
            raise Malformed(b"cut short: " + lines[:200])
        return None
    del received[: end + 4 + size]
    return Answer(status, body, _CLOSE.search(lines) is not None, _RETRY_AFTER.search(lines) is not None)


def receive_answer(connection: socket.socket) -> Answer | None:
    """The next answer on a blocking connection; None if it ends instead. Raises OSError and Malformed."""
    received = bytearray()
    while (answer := take_answer(received)) is None:
        data = connection.recv(1 << 20)
        if not data:
            return None
        received += data
    return answer


def _dechunked(received: bytearray, start: int) -> tuple[bytes, int] | None:
    """A chunked body that begins there and its size on the wire; None while it is not whole."""
    body, place = b"", start
    while (end := received.find(b"\r\n", place)) >= 0:
        try:
            size = int(bytes(received[place:end]), 16)
        except ValueError:
            raise Malformed(bytes(received[place : place + 100])) from None
        place = end + 2 + size + 2
        if len(received) < place:
            return None
        body += received[end + 2 : place - 2]
        if size == 0:
            return body, place - start
    return None


class Caller(asyncio.Protocol):
    """One connection that sends a request and waits for its answer, and keeps what nobody asked for."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None
        self.unasked = b""
        self.closed = False

    @classmethod
    async def connect(cls, port: int) -> Caller:
        """Raises OSError."""
        _, caller = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return caller

    async def ask(self, request: bytes, seconds: float) -> Answer:
        """The answer. Raises ConnectionError if there is none, Malformed, and asyncio.TimeoutError."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.write(request)
        return await asyncio.wait_for(self._waiting, seconds)

    def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionResetError
        self._transport.write(data)

    def abort(self) -> None:
        """Leaves with a reset, as a client that crashes."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        waiting = self._waiting
        if waiting is None or waiting.done():
            self.unasked += data
            return
        try:
            answer = take_answer(self._received)
        except Malformed as error:
            waiting.set_exception(error)
            return
        if answer is not None:
            self.unasked += bytes(self._received)
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError(f"no answer, {len(self._received)} bytes"))


# Requests to the model ``witness``, which returns "model|row|call", and the rows of a response.


def by_prediction(model: str, rows: list[str]) -> bytes:
    """TorchServe's route takes one row."""
    return post(f"/predictions/{model}", rows[0].encode())


def by_v1(model: str, rows: list[str]) -> bytes:
    body = json.dumps({"instances": [{"data": row} for row in rows]}).encode()
    return post(f"/v1/models/{model}:predict", body, "Content-Type: application/json")


def by_v2_json(model: str, rows: list[str]) -> bytes:
    tensor = {"name": "x", "datatype": "BYTES", "shape": [len(rows)], "data": rows}
    body = json.dumps({"inputs": [tensor]}).encode()
    return post(f"/v2/models/{model}/infer", body, "Content-Type: application/json")


def by_v2_binary(model: str, rows: list[str]) -> bytes:
    """V2, bytes behind the JSON."""
    data = b"".join(struct.pack("<I", len(row)) + row.encode() for row in rows)
    size = {"binary_data_size": len(data)}
    tensor = {"name": "x", "datatype": "BYTES", "shape": [len(rows)], "parameters": size}
    text = json.dumps({"inputs": [tensor]}).encode()
    return post(f"/v2/models/{model}/infer", text + data, f"Inference-Header-Content-Length: {len(text)}")


REQUESTS = (by_prediction, by_v1, by_v2_json, by_v2_binary)


def answer_rows(path_kind: str, body: bytes) -> list[str]:
    if path_kind == by_prediction.__name__:
        rows = [body.decode()]
    elif path_kind == by_v1.__name__:
        rows = json.loads(body)["predictions"]
    else:
        rows = json.loads(body)["outputs"][0]["data"]
    return [row.rpartition("|")[0] for row in rows]
