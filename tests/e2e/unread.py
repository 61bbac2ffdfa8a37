"""Clients that ask for large answers and do not take them."""

import json
import socket

from hpack import Encoder
from tests.e2e.grpc_client import INFERENCE, predict
from tests.e2e.raw import connect, post
from tests.ext.grpc.http2 import talking

from modelserver.ext.grpc.framing import message_framed

SIZE = 6_000_000
"""Bytes of an answer; more than the system holds for a connection."""
ORDER = json.dumps({"do": "big", "bytes": SIZE}).encode()
REQUEST = post("/predictions/obey", ORDER, "Content-Type: application/json")
_INITIAL_WINDOW = 4  # a setting of HTTP/2 (RFC 9113)


def ask(port: int) -> socket.socket:
    connection = connect(port, 30, small=True)
    connection.sendall(REQUEST)
    return connection


def call(port: int, number: int) -> socket.socket:
    """A gRPC connection with so many calls, from 1 on in steps of 2, whose windows are closed."""
    message = message_framed(predict("obey", body=ORDER).SerializeToString())
    path = f"/{INFERENCE}InferenceAPIsService/Predictions"
    fields = (*talking.POST[:2], (":path", path), (":authority", "x"), ("content-type", "application/grpc"))
    encoder = Encoder()
    closed = talking.setting(_INITIAL_WINDOW, 0)
    sent = [talking.PREFACE, talking.frame(talking.SETTINGS, 0, 0, closed)]
    for stream in range(1, 2 * number, 2):
        head = encoder.encode(fields)
        sent.append(talking.frame(talking.HEADERS, talking.WHOLE, stream, head))
        sent.append(talking.frame(talking.DATA, talking.END, stream, message))
    connection = connect(port, 30)
    connection.sendall(b"".join(sent))
    return connection


def open_windows(connection: socket.socket, number: int, size: int) -> None:
    """Takes so many bytes of each of the calls."""
    streams = range(1, 2 * number, 2)
    connection.sendall(
        b"".join(talking.frame(talking.WINDOW, 0, stream, talking.number(size)) for stream in streams)
    )
