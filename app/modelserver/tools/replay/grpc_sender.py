"""Sends recorded calls over gRPC again: as :mod:`modelserver.tools.replay.sender` sends requests, but each
over a connection of its own, in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from modelserver.ext.grpc.client import ask
from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.http2.errors import Broken
from modelserver.ext.grpc.statuses import http_class
from modelserver.ext.recording.entries import lines_of_call
from modelserver.surface.http.client import CUT_OFF, TimedResponse
from modelserver.surface.watching import message_framed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from modelserver.ext.recording.entries import Call
    from modelserver.tools.replay.sender import Place


async def send(
    place: Place,
    calls: Sequence[Call],
    times: Sequence[float] | None,
    *,
    connections: int,
    patience: float,
) -> list[TimedResponse]:
    """Sends each call at its time, in seconds from now; without times, as fast as possible.

    At most so many ``connections`` at once, each for at most ``patience`` seconds.
    """
    sender, loop = _Sender(place, patience), asyncio.get_running_loop()
    threads = ThreadPoolExecutor(connections)
    try:
        asked = []
        for number, call in enumerate(calls):
            due = 0.0
            if times is not None:
                due = sender.began + times[number]
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(loop.run_in_executor(threads, sender.ask, call, due))
        return await asyncio.gather(*asked)
    finally:
        sender.close()
        threads.shutdown(wait=False, cancel_futures=True)


class _Sender:
    """Asks in threads; its end is the end of all connections."""

    def __init__(self, place: Place, patience: float) -> None:
        self.began = time.perf_counter()
        self._place = place
        self._patience = patience
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def ask(self, call: Call, due: float) -> TimedResponse:
        """The answer to a call that is ``due`` at a time of ``perf_counter``; 0: now."""
        sent = due or time.perf_counter()
        metadata = [*map(_encoded, call.headers), *self._place.metadata()]
        url = f"{'http' if self._place.tls is None else 'https'}://{self._place.authority}{call.target}"
        status, lines, body, fault = 0, b"", b"", ""
        try:
            with self._connection() as connection:
                replied = ask(connection, url, metadata, message_framed(call.body), self._patience)
        except TimeoutError:
            fault = f"no answer within {self._patience:g} s"
        except (ConnectionResetError, BrokenPipeError):
            fault = CUT_OFF
        except OSError as error:
            fault = f"cannot connect: {error.strerror or error}"
        except (Broken, ValueError) as error:
            fault = f"unreadable answer: {error}"
        else:
            status, lines = http_class(replied.code), lines_of_call(replied.code)
            body = replied.content if replied.code == StatusCode.OK else replied.text
        return TimedResponse(sent - self.began, time.perf_counter() - sent, status, lines, body, fault)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """A new one. Raises OSError."""
        place = self._place
        with contextlib.ExitStack() as stack:
            made = stack.enter_context(socket.create_connection((place.host, place.port), self._patience))
            if place.tls is not None:
                made = stack.enter_context(place.tls.wrap_socket(made, server_hostname=place.host))
            with self._lock:
                self._open.add(made)
            try:
                yield made
            finally:
                with self._lock:
                    self._open.discard(made)

    def close(self) -> None:
        """Ends what is still asked."""
        with self._lock, contextlib.suppress(OSError):
            for each in self._open:
                each.shutdown(socket.SHUT_RDWR)


def _encoded(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Binary metadata are recorded as they are, and sent as text."""
    name, value = header
    return (name, base64.b64encode(value)) if name.endswith(b"-bin") else header
