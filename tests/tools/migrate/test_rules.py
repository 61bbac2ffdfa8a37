"""The rules explain what is different, from a request and its answers alone, and nothing else."""

from __future__ import annotations

import re

import pytest
from tests.differential.chapters import chapters
from tests.differential.differences import expected_of
from tests.differential.replay import recorded
from tests.tools.migrate.pairs import FAILED, INSTANCES, a_call, change_of, good, said

from modelserver.tools.migrate.calls import Answer, Call
from modelserver.tools.migrate.changes import PHRASES, pretty
from modelserver.tools.migrate.comparison import mismatches
from modelserver.tools.migrate.rules import explain

# Their answers differ because an earlier registration succeeded on one server only.
_FOLLOWING = re.compile(
    r"(styles|manifests)/predict |configurations/describe (nothing|remark|silent)|table/describe c_nothing|"
    r"registration/describe values: negative|\w+/unregister|"
    r"broken/(nothing is left|handler of the registration)"
)


def test_differences_are_explained_from_request_and_answers_alone() -> None:
    """``modelserver migrate`` names a rule that is about them, but for what follows from earlier answers, and
    for requests that failed with others in a batch, whose answers say how large it was.
    """
    wrong = {}
    for chapter in chapters():
        theirs = recorded(chapter)
        for call in chapter.calls:
            name, answer = f"{chapter.name}/{call.name}", theirs[call.name]
            expected, rules = expected_of(chapter, call, answer)
            if "isolation" in {rule.name for rule in rules}:
                expected = expected.but(headers={"x-batch-size": "4"})
            if expected.body is None:
                continue  # not compared
            found = explain(call, answer, expected) if mismatches(answer, expected) else [()]
            if not any(set(each) <= set(rules) for each in found) and not _FOLLOWING.match(name):
                wrong[name] = [[rule.name for rule in each] for each in found]

    assert wrong == {}


# Rules about what handlers are given: what they make of it is their own.
_OF_INPUT = {"json", "form-fields", "v1-instances", "phrase", "content-type"}
_FAILED = b'{\n  "code": 503,\n  "type": "InternalServerException",\n  "message": "Prediction failed"\n}\n'


def test_other_answers_are_not_explained() -> None:
    """No rule makes an excuse for an answer that is simply wrong, unless handlers are given other input."""
    explained = {}
    for chapter in chapters():
        theirs = recorded(chapter)
        for call in chapter.calls[::4]:
            answer = theirs[call.name]
            for status, body in ((503, _FAILED), (200, b'{"predictions": ["something else"]}'), (0, b"")):
                ours = answer.but(status=status, reason=PHRASES.get(status, ""), body=body)
                rules = {rule.name for rules in explain(call, answer, ours) for rule in rules} - _OF_INPUT
                if rules and 200 <= answer.status < 300 and answer.body:
                    explained[f"{chapter.name}/{call.name}"] = rules

    assert explained == {}


def test_the_fewest_rules_are_named() -> None:
    """Two where both are needed, alternatives where each would do."""
    asked = Call("", "management", "POST", "/models?url=m.mar")
    failed = Answer(500, "", {}, pretty({"message": "Failed to start workers for model m version: 1"}))
    alternatives = explain(asked, failed, Answer(200, "OK", {}, b"{}"))
    asked = Call("", "inference", "POST", "/predictions/m")
    together = explain(
        asked, Answer(200, "", {}, b"1"), Answer(200, "OK", {"content-type": "application/json"}, b"1")
    )

    assert [[rule.name for rule in rules] for rules in alternatives] == [["loader"], ["null-fields"]]
    assert [[rule.name for rule in rules] for rules in together] == [["phrase", "content-type"]]


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("exposed", a_call("/predictions/m"), FAILED,
         said(503, "Prediction failed: KeyError", request_id="1")),
        ("exposed", INSTANCES, said(500, "Prediction failed", error="Prediction failed"),
         said(500, "Prediction failed: K", error="Prediction failed: K", request_id="1")),
        ("exposed", a_call("/predictions/m"), said(404, "Model not found: m"),
         said(404, "Model not found: m. There is: n")),
        ("rounding", a_call("/predictions/m"), good({"a": [0.123456]}), good({"a": [0.123457]})),
    ],
)  # fmt: skip
def test_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """The body is ours then."""
    assert change_of(rule)(asked, theirs, ours).body == ours.body


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("exposed", a_call("/predictions/m"), FAILED, said(500, "Prediction failed: KeyError")),
        (
            "exposed",
            a_call("/predictions/m"),
            said(404, "Model not found: m"),
            said(404, "Model not found: n"),
        ),
        ("rounding", a_call("/predictions/m"), good({"a": [0.12]}), good({"a": [0.13]})),
        ("rounding", a_call("/predictions/m"), good([1]), good([1.0])),
    ],
)  # fmt: skip
def test_not_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """TorchServe's answer stays as it is."""
    assert change_of(rule)(asked, theirs, ours) == theirs
