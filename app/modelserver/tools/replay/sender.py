"""Sends recorded requests again, with the gaps they came in or as fast as they are answered.

With gaps, each request is due at its time whether or not earlier ones were answered.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from modelserver.errors import ConfigError
from modelserver.surface.http.client import Requester, TimedResponse
from modelserver.tools.replay.finding import trusting

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from modelserver.ext.recording.entries import Call


# As it stands in a request line.
_PATH: Final = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Place:
    """The server to send to; ``prefix`` precedes each path, ``headers`` are added to each request."""

    host: str
    port: int
    prefix: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls, url: str, headers: Sequence[tuple[str, str]], ca_file: str | None, flag: str = "--to"
    ) -> Place:
        """Raises ConfigError for an unusable URL or file of authorities."""
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
        return cls(parts.hostname, port, parts.path.rstrip("/"), tuple(headers), tls)

    @classmethod
    def of_grpc(cls, url: str, headers: Sequence[tuple[str, str]], ca_file: str | None) -> Place:
        """For calls over gRPC. Raises ConfigError as :meth:`of`."""
        place = cls.of(url, headers, ca_file, flag="--to-grpc")
        if place.tls is not None:
            place.tls.set_alpn_protocols(["h2"])
        return place

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
        given = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers)
        lines += [f"{name}: {value}" for name, value in (*given, *self.headers)]
        lines += [f"content-length: {len(call.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + call.body


async def send(
    place: Place,
    calls: Sequence[Call],
    times: Sequence[float] | None,
    *,
    connections: int,
    patience: float,
) -> list[TimedResponse]:
    """Sends each call at its time, in seconds from now; without times, as fast as possible.

    Over at most so many ``connections``. After ``patience`` seconds without any answer, those that are
    missing count as lost.
    """
    requests = [place.request(call) for call in calls]
    answers = [TimedResponse(0.0, 0.0, fault=f"no answer within {patience:g} s")] * len(requests)
    requester = Requester(place.host, place.port, connections, answers.__setitem__, place.tls)
    for number, request in enumerate(requests):
        due = 0.0
        if times is not None:
            due = requester.began + times[number]
            # Also where it is late already, so that answers are read.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        requester.send(number, request, due)
    await requester.drain(patience)
    requester.close()
    return answers
