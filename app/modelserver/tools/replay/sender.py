"""Sends recorded requests again, with the gaps they came in or as fast as they are answered.

With gaps, each request is due at its time whether or not earlier ones were answered. Calls over gRPC have a
connection each.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from modelserver.errors import ConfigError
from modelserver.ext.grpc.framing import message_framed
from modelserver.ext.grpc.http2.frames import Http2Error
from modelserver.ext.grpc.statuses import StatusCode, http_status
from modelserver.ext.recording.entries import Call, lines_of_call
from modelserver.tools.grpc_client import send_call
from modelserver.tools.http_client import CUT_OFF, Requester, TimedResponse
from modelserver.tools.running_server import trusting

if TYPE_CHECKING:
    import ssl


Times: TypeAlias = "Sequence[float] | None"
"""When calls are sent, in seconds from now; None for as fast as possible."""
# The characters that a request line may have.
_PATH: Final = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Destination:
    """The server to send to; ``prefix`` precedes each path, ``headers`` are added to each request."""

    host: str
    port: int
    prefix: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls, url: str, headers: Sequence[tuple[str, str]], ca_file: str | None, *, over_grpc: bool = False
    ) -> Destination:
        """Raises ConfigError for an unusable URL or file of authorities."""
        flag = "--to-grpc" if over_grpc else "--to"
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError(f"{flag}={url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(f"{flag}={url}: http://host:port, or https, is needed")
        if not _PATH.fullmatch(parts.path):
            raise ConfigError(
                f"{flag}={url}: spaces and letters beyond ASCII must be written as %20 and so on"
            )
        tls = trusting(ca_file) if parts.scheme == "https" else None
        if tls is not None and over_grpc:
            tls.set_alpn_protocols(["h2"])
        return cls(parts.hostname, port, parts.path.rstrip("/"), tuple(headers), tls)

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def metadata(self) -> list[tuple[bytes, bytes]]:
        """``headers`` as calls over gRPC have them."""
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers]

    def request(self, call: Call) -> bytes:
        """The bytes of the request."""
        lines = [f"{call.method.decode()} {self.prefix}{call.target} HTTP/1.1", f"host: {self.authority}"]
        recorded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers)
        lines += [f"{name}: {value}" for name, value in (*recorded, *self.headers)]
        lines += [f"content-length: {len(call.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + call.body


async def send(
    server: Destination, calls: Sequence[Call], times: Times, *, connections: int, patience: float
) -> list[TimedResponse]:
    """Sends each call at its time.

    Over at most so many ``connections``. After ``patience`` seconds without any answer, those that are
    missing count as lost.
    """
    requests = [server.request(call) for call in calls]
    answers = [TimedResponse(0.0, 0.0, fault=f"no answer within {patience:g} s")] * len(requests)
    requester = Requester(server.host, server.port, connections, answers.__setitem__, server.tls)
    for number, request in enumerate(requests):
        requester.send(number, request, await _due(requester.began, times, number))
    await requester.drain(patience)
    requester.close()
    return answers


async def send_grpc(
    server: Destination, calls: Sequence[Call], times: Times, *, connections: int, patience: float
) -> list[TimedResponse]:
    """Sends each call at its time.

    At most so many ``connections`` at once, each for at most ``patience`` seconds.
    """
    began, free = time.perf_counter(), asyncio.Semaphore(connections)
    tasks: list[asyncio.Task[TimedResponse]] = []

    async def send(call: Call, due: float) -> TimedResponse:
        async with free:
            return await _answer(server, call, due or time.perf_counter(), began, patience)

    for number, call in enumerate(calls):
        due = await _due(began, times, number)
        tasks.append(asyncio.create_task(send(call, due)))
    return await asyncio.gather(*tasks)


async def _due(began: float, times: Times, number: int) -> float:
    """Waits until a call is due, and returns that time of ``perf_counter``; 0: at once."""
    if times is None:
        return 0.0
    due = began + times[number]
    # Sleep even if the request is late, so that answers are read meanwhile.
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return due


async def _answer(
    server: Destination, call: Call, sent: float, began: float, patience: float
) -> TimedResponse:
    metadata = [*map(_encoded, call.headers), *server.metadata()]
    url = f"{'http' if server.tls is None else 'https'}://{server.authority}{call.target}"
    status, lines, body, fault = 0, b"", b"", ""
    try:
        replied = await send_call(url, metadata, message_framed(call.body), patience, server.tls)
    except (TimeoutError, asyncio.TimeoutError):
        fault = f"no answer within {patience:g} s"
    except (ConnectionResetError, BrokenPipeError):
        fault = CUT_OFF
    except OSError as error:
        fault = f"cannot connect: {error.strerror or error}"
    except (Http2Error, ValueError) as error:
        fault = f"unreadable answer: {error}"
    else:
        status, lines = http_status(replied.code), lines_of_call(replied.code)
        body = replied.content if replied.code == StatusCode.OK else replied.text
    return TimedResponse(sent - began, time.perf_counter() - sent, status, lines, body, fault)


def _encoded(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Binary metadata are recorded as they are, and sent as text."""
    name, value = header
    return (name, base64.b64encode(value)) if name.endswith(b"-bin") else header
