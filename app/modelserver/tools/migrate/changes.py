"""The rules by which answers may differ, and what they have in common.

A rule takes over into TorchServe's answer what it explains as it is in ours. It gets the request, their
answer and ours, both masked, and returns theirs as it is where it explains nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from modelserver.tools.migrate.calls import Answer, Call
from modelserver.tools.migrate.comparison import unmasked

if TYPE_CHECKING:
    from collections.abc import Collection

BETTER, OTHER, MISSING = "better", "other", "not yet"
Change: TypeAlias = Callable[[Call, Answer, Answer], Answer]
Explains: TypeAlias = Callable[[Call, Answer, Answer], bool]

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
            def change(call: Call, theirs: Answer, ours: Answer) -> Answer:
                return ours if explains(call, theirs, ours) else theirs

            change.__doc__ = explains.__doc__
            return self.changing(name, verdict)(change)

        return add


def pretty(value: object) -> bytes:
    """As both servers print JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


@lru_cache(maxsize=8)
def parsed(body: bytes | None) -> Any:
    """None for what is no JSON."""
    try:
        return unmasked(body or b"")
    except (ValueError, RecursionError):
        return None


def message_of(answer: Answer) -> str:
    """Of an error."""
    said = parsed(answer.body) if answer.status >= 400 else None
    return str(said.get("message", "")) if isinstance(said, dict) else ""


def failed(answer: Answer) -> bool:
    """Whether a handler failed."""
    return answer.status in (500, 503) and message_of(answer).startswith(FAILED)


def good(answer: Answer) -> bool:
    """Whether it is a success."""
    return 200 <= answer.status < 300


def registers(call: Call) -> bool:
    """Whether it registers a model."""
    return call.method == "POST" and call.path.partition("?")[0] == "/models"


def header_of(call: Call, name: str) -> str:
    """Of a request; empty if it is not there."""
    return next((value for key, value in call.headers if key.lower() == name), "")


def _only_at(theirs: Answer, ours: Answer, keys: Collection[str]) -> bool:
    """Whether the bodies are JSON that differs at these keys only."""
    a, b = parsed(theirs.body), parsed(ours.body)
    return a is not None and a != b and _without(a, keys) == _without(b, keys)


def _without(value: Any, keys: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, keys) for name, inner in value.items() if name not in keys}
    return [_without(inner, keys) for inner in value] if isinstance(value, list) else value


def body_at(*keys: str) -> Change:
    """Our body, where it differs at these keys only."""
    return lambda _call, theirs, ours: theirs.but(body=ours.body) if _only_at(theirs, ours, keys) else theirs


def described_at(*keys: str) -> Change:
    """The same for descriptions only."""
    change = body_at(*keys)
    return lambda call, theirs, ours: change(call, theirs, ours) if call.port == "management" else theirs
