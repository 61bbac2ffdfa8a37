"""What is asked of a server and what it answers, and both as JSON that people can read."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

Port = Literal["inference", "management", "metrics"]
_LONG = 2000  # bytes
PATIENCE = 60.0  # seconds until an answer is given up


@dataclass(frozen=True, slots=True)
class Call:
    """One request; ``name`` is unique in its chapter."""

    name: str
    port: Port
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def to_json(self) -> dict[str, Any]:
        """As it stands in a recording."""
        return {
            "port": self.port,
            "method": self.method,
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "body": readable(self.body) if len(self.body) < _LONG else digest(self.body),
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``headers`` by name in lower case; ``body`` None where it is not compared."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a recording."""
        return {
            "status": self.status,
            "reason": self.reason,
            "headers": dict(self.headers),
            "body": None if self.body is None else readable(self.body),
        }

    @classmethod
    def of_json(cls, recorded: Mapping[str, Any]) -> Answer:
        """The reverse of :meth:`to_json`."""
        return cls(recorded["status"], recorded["reason"], recorded["headers"], unreadable(recorded["body"]))

    def but(self, **changes: Any) -> Answer:
        """A copy with changes; ``headers`` are added to those there are, None takes one out."""
        headers = {**self.headers, **changes.pop("headers", {})}
        kept = {name: value for name, value in headers.items() if value is not None}
        return replace(self, headers=kept, **changes)


@dataclass(frozen=True, slots=True)
class Together:
    """Calls that are sent at the same time, to be answered as one batch."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Waits until a model version has this many workers, all of them ready."""

    model: str
    workers: int
    version: str = ""


Step = Call | Together | Settle


def readable(data: bytes) -> Any:
    """Text where it is text, else base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def digest(data: bytes) -> dict[str, Any]:
    """What a long body is recorded as."""
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def unreadable(recorded: Any) -> bytes | None:
    """The reverse of :func:`readable`."""
    if recorded is None:
        return None
    return recorded.encode() if isinstance(recorded, str) else base64.b64decode(recorded["base64"])


def send(call: Call, address: tuple[str, int]) -> Answer:
    """Sends exactly what the call says, over a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.putrequest(call.method, call.path, skip_accept_encoding=True)
        for name, value in call.headers:
            connection.putheader(name, value)
        if call.body or call.method in {"POST", "PUT", "PATCH"}:
            connection.putheader("Content-Length", str(len(call.body)))
        # Refused before the body was read: the answer is there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.endheaders(call.body or None)
        response = connection.getresponse()
        try:
            body = response.read()
        except http.client.IncompleteRead as error:
            body = error.partial + b"<cut off>"
        headers: dict[str, str] = {}
        for name, value in response.getheaders():
            lower = name.lower()
            headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
        return Answer(response.status, response.reason, headers, body)
    except (OSError, http.client.HTTPException, TimeoutError) as error:
        return Answer(0, type(error).__name__, {}, b"")
    finally:
        connection.close()


# Short ways to write calls


def get(name: str, port: Port, path: str, **headers: str) -> Call:
    """A request without a body."""
    return Call(name, port, "GET", path, _headers(headers))


def register(name: str, url: str, **parameters: object) -> Call:
    """A registration; with one worker, waited for, unless told otherwise."""
    query = {"url": url, "initial_workers": 1, "synchronous": "true", **parameters}
    given = {key: value for key, value in query.items() if value is not None}
    return Call(name, "management", "POST", f"/models?{urlencode(given)}")


def unregister(name: str, model: str) -> Call:
    """Takes a model away."""
    return Call(name, "management", "DELETE", f"/models/{quote(model)}")


def predict(name: str, model: str, body: bytes | str = b"", **headers: str) -> Call:
    """A prediction; the header ``content_type`` is written with a dash."""
    data = body.encode() if isinstance(body, str) else body
    return Call(name, "inference", "POST", f"/predictions/{model}", _headers(headers), data)


def post(name: str, path: str, body: bytes | str = b"", **headers: str) -> Call:
    """A request of the inference port with a body."""
    data = body.encode() if isinstance(body, str) else body
    return Call(name, "inference", "POST", path, _headers(headers), data)


def _headers(named: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-").title(), value) for name, value in named.items())
