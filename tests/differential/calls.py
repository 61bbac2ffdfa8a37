"""The steps of the comparison, and short ways to write calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from modelserver.tools.migrate.calls import Call, Port

if TYPE_CHECKING:
    from collections.abc import Mapping


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
