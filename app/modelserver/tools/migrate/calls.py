"""Requests to a server and its responses, and both as JSON that people can read."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Port = Literal["inference", "management", "metrics", "grpc_inference", "grpc_management"]
_LONG = 2000  # bytes
PATIENCE = 60.0  # seconds until an answer is given up


@dataclass(frozen=True, slots=True)
class Probe:
    """One request that is sent to both servers; ``name`` is unique in its chapter."""

    name: str
    port: Port
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def to_json(self) -> dict[str, Any]:
        """The JSON form that recordings have."""
        return {
            "port": self.port,
            "method": self.method,
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "body": readable(self.body) if len(self.body) < _LONG else digest(self.body),
        }


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a server. ``headers`` by name in lower case; ``body`` None where it is not compared."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes | None

    def to_json(self) -> dict[str, Any]:
        """The JSON form that recordings have."""
        return {**asdict(self), "body": None if self.body is None else readable(self.body)}

    def but(self, **changes: Any) -> Response:
        """A copy with changes; ``headers`` are added to those there are, None takes one out."""
        headers = {**self.headers, **changes.pop("headers", {})}
        present = {name: value for name, value in headers.items() if value is not None}
        return replace(self, headers=present, **changes)


def readable(data: bytes) -> Any:
    """Text where it is text, else base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def digest(data: bytes) -> dict[str, Any]:
    """Returns what is recorded of a long body: its length and SHA-256."""
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def send(call: Probe, address: tuple[str, int]) -> Response:
    """Sends exactly what the call says, over a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.putrequest(call.method, call.path, skip_accept_encoding=True)
        for name, value in call.headers:
            connection.putheader(name, value)
        if call.body or call.method in {"POST", "PUT", "PATCH"}:
            connection.putheader("Content-Length", str(len(call.body)))
        # A server that refuses early closes before it has read the body; its answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.endheaders(call.body or None)
        response = connection.getresponse()
        try:
            body = response.read()
        except http.client.IncompleteRead as error:
            body = error.partial + b"<cut off>"
        headers = {name.lower(): response.getheader(name, "") for name in response.headers}
        return Response(response.status, response.reason, headers, body)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Response(0, type(error).__name__, {}, b"")
    finally:
        connection.close()


class MigrationError(Exception):
    """The two servers cannot be compared; the message says why, for the user."""
