"""The rules by which answers may differ, and what they have in common.

A rule takes over into TorchServe's answer what it explains as it is in ours. It gets the request, their
answer and ours, both masked, and returns theirs as it is where it explains nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.comparison import unmasked

BETTER, OTHER, MISSING = "better", "other", "not yet"
Change: TypeAlias = Callable[[Probe, Response, Response], Response]
Explains: TypeAlias = Callable[[Probe, Response, Response], bool]

PHRASES = {
    **http.client.responses,
    413: "Request Entity Too Large",  # as they were before Python 3.13
    422: "Unprocessable Entity",
}
FAILED = "Prediction failed"


@dataclass(frozen=True, slots=True)
class Rule:
    """One difference.

    ``verdict`` says whether ours is better, other, or not there yet; ``why`` is a sentence for the migration
    guide.
    """

    name: str
    verdict: str
    why: str
    change: Change


class Rules(list[Rule]):
    """Rules that are written as functions, whose docstrings say why."""

    def changing(self, name: str, verdict: str) -> Callable[[Change], Rule]:
        """Adds a rule that changes their answer."""

        def add(change: Change) -> Rule:
            self.append(Rule(name, verdict, " ".join((change.__doc__ or "").split()), change))
            return self[-1]

        return add

    def taking_over(self, name: str, verdict: str) -> Callable[[Explains], Rule]:
        """Adds a rule that takes over ours as a whole, if the function says so."""

        def add(explains: Explains) -> Rule:
            def change(call: Probe, reference: Response, ours: Response) -> Response:
                return ours if explains(call, reference, ours) else reference

            change.__doc__ = explains.__doc__
            return self.changing(name, verdict)(change)

        return add


def pretty(value: object) -> bytes:
    """The JSON of a value, formatted as both servers do it."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


@lru_cache(maxsize=8)
def parsed(body: bytes | None) -> Any:
    """None for what is no JSON."""
    try:
        return unmasked(body or b"")
    except (ValueError, RecursionError):
        return None


def message_of(answer: Response) -> str:
    """The message of an error, empty for a success."""
    document = parsed(answer.body) if answer.status >= 400 else None
    return str(document.get("message", "")) if isinstance(document, dict) else ""


def failed(answer: Response) -> bool:
    """Whether a handler failed."""
    return answer.status in (500, 503) and message_of(answer).startswith(FAILED)


def good(answer: Response) -> bool:
    """Whether it is a success."""
    return 200 <= answer.status < 300


def registers(call: Probe) -> bool:
    """Whether it registers a model."""
    return call.method == "POST" and call.path.partition("?")[0] == "/models"


def header_of(call: Probe, name: str) -> str:
    """The value of a request header, empty if it is missing."""
    return next((value for key, value in call.headers if key.lower() == name), "")


def body_at(reference: Response, ours: Response, *keys: str) -> Response:
    """Their answer with our body, where the bodies are JSON that differs at these keys only."""
    a, b = parsed(reference.body), parsed(ours.body)
    differ = a is not None and a != b and _without(a, keys) == _without(b, keys)
    return reference.but(body=ours.body) if differ else reference


def described_at(call: Probe, reference: Response, ours: Response, *keys: str) -> Response:
    """Likewise, in a description only."""
    return body_at(reference, ours, *keys) if call.port == "management" else reference


def _without(value: Any, keys: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, keys) for name, inner in value.items() if name not in keys}
    return [_without(inner, keys) for inner in value] if isinstance(value, list) else value
