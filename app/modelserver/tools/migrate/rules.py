"""Where modelserver answers otherwise than TorchServe 0.12.0, and why: the whole list.

The migration guide prints this list, and the tests hold it against recorded answers.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from modelserver.ext.rollout.agreement import Tolerance, agree, pairs
from modelserver.tools.migrate import management, predictions
from modelserver.tools.migrate.changes import (
    BETTER,
    FAILED,
    OTHER,
    Rule,
    Rules,
    body_at,
    described_at,
    message_of,
    parsed,
)
from modelserver.tools.migrate.comparison import mismatches, without_additions
from modelserver.tools.migrate.grpc_calls import METHOD

if TYPE_CHECKING:
    from modelserver.tools.migrate.calls import Answer, Call

RULES: tuple[Rule, ...] = (*predictions.RULES, *management.RULES)
"""All differences between the two servers."""
OF_THE_RUN = Rules()
"""What the recorded comparison leaves out: it is of the start, a setting or the machine."""
VARIES = Rule(
    "varies",
    OTHER,
    "TorchServe itself answers otherwise when it is asked the same again.",
    lambda _call, theirs, _ours: theirs,
)
"""No rule about one pair of answers: TorchServe is asked twice."""
_ABSENT = "Model not found: ", "Model version: "
_TOLERANCE = Tolerance(1e-3, 1e-6)  # of floating point numbers


def explain(call: Call, theirs: Answer, ours: Answer) -> list[tuple[Rule, ...]]:
    """The fewest rules that together explain everything that is not the same; several if each would do.

    Both answers are masked. Empty if no rules do.
    """
    ours = ours.but(body=without_additions(ours.body or b""))
    able = [rule for rule in (*RULES, *OF_THE_RUN) if rule.change(call, theirs, ours) != theirs]
    for size in range(1, len(able) + 1):
        found = [rules for rules in combinations(able, size) if _suffice(rules, call, theirs, ours)]
        if found:
            return found
    return []


def _suffice(rules: tuple[Rule, ...], call: Call, theirs: Answer, ours: Answer) -> bool:
    answer = theirs
    for rule in rules:
        answer = rule.change(call, answer, ours)
    return not mismatches(answer, ours)


OF_THE_RUN.append(
    Rule(
        "startup",
        OTHER,
        "`loadedAtStartup` is true of versions that were loaded at the start; TorchServe's is true of all "
        "versions of a model that had one then, or that a snapshot restored.",
        described_at("loadedAtStartup"),
    )
)


@OF_THE_RUN.changing("exposed", BETTER)
def _exposed(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """For clients on the same machine the message also names the exception, the line in the handler and
    what to do, and a 404 of a model which models there are (`expose_errors=false` tells nobody).
    """
    if call.method == METHOD:
        (said, theirs_ends), (more, ours_ends) = (_of_java(answer.body or b"") for answer in (theirs, ours))
        explained = _goes_on(said, more) and theirs_ends == ours_ends
        return theirs.but(body=ours.body) if explained else theirs
    if not _goes_on(message_of(theirs), message_of(ours)):
        return theirs
    return body_at("message", "error", "request_id")(call, theirs, ours)


def _goes_on(said: str, more: str) -> bool:
    """Whether the second message is the first, with what is told beside it."""
    if said.startswith(_ABSENT):
        return more.startswith(f"{said}. There ")
    return said == FAILED and more.startswith(f"{FAILED}: ")


def _of_java(text: bytes) -> tuple[str, str]:
    """The message of an error over gRPC, and Java's class on its last line."""
    message, _, name = text.decode("utf-8", "replace").rpartition("\n")
    return message, name


@OF_THE_RUN.changing("rounding", OTHER)
def _rounding(_call: Call, theirs: Answer, ours: Answer) -> Answer:
    """Floating point numbers differ in their last digits, by less than one in a thousand: another version
    of torch or another machine computes so.
    """
    a, b = parsed(theirs.body), parsed(ours.body)
    return theirs.but(body=ours.body) if a is not None and _close(a, b) else theirs


def _close(a: Any, b: Any) -> bool:
    """Whether both are the same but for the last digits of floating point numbers."""
    return all(
        type(one) is type(other) and (one == other if isinstance(one, int) else agree(one, other, _TOLERANCE))
        for _, one, other in pairs(a, b, ordered=True)
    )
