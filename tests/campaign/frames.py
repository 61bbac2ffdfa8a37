"""Frames for the port of gRPC: what breaks the rules of HTTP/2, and floods of what brings nothing."""

import contextlib
from collections.abc import Iterator

from tests.e2e.raw import connect
from tests.e2e.serving import Server
from tests.ext.grpc.http2 import talking
from tests.ext.grpc.http2.test_conformance import ENDS_CONNECTION, MALFORMED, PING_ME, PONG, head, request

from modelserver.ext.grpc.http2.frames import Code

GREETING = talking.PREFACE + talking.frame(talking.SETTINGS, 0, 0)
PATIENCE = 20.0
# A request that is refused before it is whole: its stream has ended on the server's side only.
CUT_OFF = head(talking.WHOLE, ("connection", "close"))
FLOOD = 20_000  # frames
FLOODS = {
    "acknowledged settings": talking.frame(talking.SETTINGS, 1, 0),
    "answers to pings": talking.frame(talking.PING, 1, 0, bytes(8)),
    "empty data of ended streams": talking.frame(talking.DATA, 0, 1),
    "resets of ended streams": talking.frame(talking.RESET, 0, 1, talking.number(Code.CANCEL)),
    "farewells": talking.frame(talking.GOAWAY, 0, 0, bytes(8)),
    "pings": talking.frame(talking.PING, 0, 0, bytes(8)),
}
CALL = (*talking.POST[:2], (":path", "/grpc.health.v1.Health/Check"), ("content-type", "application/grpc"))


def port_of(server: Server) -> int:
    return int(str(server.settings["grpc_inference_port"]))


def conversations() -> Iterator[tuple[str, bytes, tuple[int, int, bytes]]]:
    """Names, what a client sends, and kind and stream of a frame that it must get, with its code or text."""
    for name, sent in MALFORMED.items():
        yield name, sent, (talking.RESET, 1, talking.number(Code.PROTOCOL_ERROR))
    ends = [(name, steps, code) for code, table in ENDS_CONNECTION.items() for name, steps in table.items()]
    for name, steps, code in ends:
        # Requests of these tables have no gRPC content: they are answered before they are whole.
        if None not in steps and len(steps) == 1:
            sent = b"".join(step for step in steps if step is not None)
            yield name, sent, (talking.GOAWAY, 0, talking.number(code))
    for timeout in ("1s", "-1S", "123456789S", ""):
        call = request([*CALL, ("grpc-timeout", timeout)])
        yield f"a deadline of {timeout!r}", call, (talking.HEADERS, 1, b"malformed grpc-timeout")


def talk(port: int, sent: bytes) -> list[talking.Frame]:
    """The frames that come back, until a ping is answered or the connection has ended."""
    received = b""
    with connect(port, PATIENCE) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(GREETING + sent + PING_ME)
        while (piece := connection.recv(1 << 16)) and talking.frame(*PONG) not in received + piece:
            received += piece
        received += piece
    return list(talking.frames_of(received))


def is_right(heard: list[talking.Frame], expected: tuple[int, int, bytes]) -> bool:
    """Whether the frame that a client must get is among those that it got."""
    kind, stream, reason = expected
    start = 4 if kind == talking.GOAWAY else 0
    return any(
        (each.kind, each.stream) == (kind, stream) and reason in each.payload[start:] for each in heard
    )


def flood(port: int, kind: str) -> bool:
    """Sends the frames at once; whether the server has ended the connection."""
    with connect(port, PATIENCE) as connection:
        try:
            connection.sendall(GREETING + CUT_OFF + FLOODS[kind] * FLOOD)
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
    return True
