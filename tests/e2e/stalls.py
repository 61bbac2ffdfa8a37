"""Measures for how long a server is held up while something goes on, and bodies that could do it."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.e2e.grpc_client import channel, stub

from modelserver.ext.grpc.messages import message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.serving import Server

MOST = 6_400_000  # bytes of a body, just below max_request_size
# Seconds of processor time: of the longest stall, and of the server while it is asked for its health once.
LONGEST = 0.02
LONGEST_ANSWER = 0.05


class Watch:
    """Asks a server for its health again and again, at each port, while something goes on.

    Stalls of front ends count, and so does the processor time of all of them until an answer.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        pids = [process.pid for process in server.processes()]
        self._clocks = [Path(f"/proc/{pid}/task/{pid}/schedstat") for pid in pids]
        self.longest_answer = 0.0

    def _used(self) -> float:
        return sum(int(clock.read_text().split()[0]) for clock in self._clocks) / 1e9

    def _ask(self) -> None:
        with contextlib.ExitStack() as stack:
            server = self._server
            questions = [
                _ask_http(stack, each) for each in (server.inference, server.management, server.metrics)
            ]
            if server.settings["enable_grpc_api"] == "true":
                questions += [_ask_grpc(stack, server, side) for side in ("inference", "management")]
            while not self._ended.is_set():
                for lives in questions:
                    before = self._used()
                    assert lives()
                    self.longest_answer = max(self.longest_answer, self._used() - before)
                time.sleep(0.01)

    def _stalls(self) -> list[float]:
        text = self._server.metrics.get("/metrics").text
        found = re.findall(r'^modelserver_loop_stall_seconds_bucket{le="([^"]+)"} (\d+)', text, re.MULTILINE)
        return [float(count) for _, count in found]

    def longest_stall(self) -> float:
        """An upper bound of the longest stall since it began."""
        bounds = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 1e9)
        fresh = [after - before for before, after in zip(self._before, self._stalls(), strict=True)]
        total = fresh[-1]
        return bounds[next((n + 1 for n, count in enumerate(fresh) if count == total), 0)] if total else 0.0

    def __enter__(self) -> Watch:
        self._before = self._stalls()
        self._thread.start()
        time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.05)
        self._ended.set()
        self._thread.join()


def _ask_http(stack: contextlib.ExitStack, like: httpx.Client) -> Callable[[], bool]:
    client = stack.enter_context(httpx.Client(base_url=like.base_url, trust_env=False, timeout=60))
    return lambda: client.get("/livez").status_code == 200


def _ask_grpc(stack: contextlib.ExitStack, server: Server, side: str) -> Callable[[], bool]:
    check = stub(stack.enter_context(channel(server, side)), "grpc.health.v1.Health").Check
    question = message("grpc.health.v1.HealthCheckRequest")()
    return lambda: bool(check(question, timeout=60).status)


def undisturbed(server: Server, act: Callable[[], Any]) -> Any:
    """What ``act`` returns, which holds up nobody while it is done; what the machine does besides may."""
    for attempt in range(3):
        with Watch(server) as watch:
            done = act()
        if watch.longest_stall() <= LONGEST and watch.longest_answer <= LONGEST_ANSWER:
            return done
        held = f"{watch.longest_stall()} s, {watch.longest_answer} s until an answer (attempt {attempt})"
    raise AssertionError(f"the event loop was held for {held}")


def v2(inputs: bytes, more: bytes = b"") -> bytes:
    """A V2 request."""
    return b'{"inputs":[' + inputs + b"]" + more + b"}"


def tensor(datatype: bytes, shape: bytes, data: bytes) -> bytes:
    """An input with its data in JSON."""
    return b'{"name":"x","shape":[%b],"datatype":"%b","data":[%b]}' % (shape, datatype, data)


def many(piece: bytes, size: int = MOST) -> tuple[int, bytes]:
    """So many of a JSON value that the list of them has ``size`` bytes, and the list without its brackets."""
    count = size // (len(piece) + 1)
    return count, b",".join([piece] * count)


def listed(datatype: bytes, piece: bytes, rows: bool = False, size: int = MOST - 100) -> bytes:
    """A V2 request of one input with so many bytes, by default as many as it may have."""
    count, data = many(piece, size)
    return v2(tensor(datatype, b"%d" % count if rows else b"1,%d" % count, data))


# Messages of gRPC


def varint(number: int) -> bytes:
    """As protobuf writes it."""
    made = b""
    while number > 127:
        made, number = made + bytes([number & 127 | 128]), number >> 7
    return made + bytes([number])


def field(number: int, content: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def asking(*fields: bytes, model: bytes = b"mirror") -> bytes:
    """A message for a model."""
    return field(1, model) + b"".join(fields)


def given(datatype: bytes, contents: bytes, count: int = 1) -> bytes:
    """The first input of a message."""
    shape = varint(1) + varint(count)
    return field(5, field(1, b"x") + field(2, datatype) + field(3, shape) + field(5, contents))


def raw(datatype: bytes) -> tuple[bytes, bytes]:
    """An input of many elements of four bytes, and its contents beside it."""
    count = 1_600_000
    shape = b"\1" + varint(count)
    return field(5, field(1, b"x") + field(2, datatype) + field(3, shape)), field(7, bytes(4 * count))


def merging(levels: int) -> bytes:
    """Small YAML that stands for an enormous one."""
    lines = ["l0: &l0 {" + ", ".join(f"k{n}: 1" for n in range(10)) + "}"]
    lines += [f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 9)}]}}" for n in range(1, levels)]
    return "\n".join(lines).encode()
