import re

import pytest
from tests.differential.chapters import chapters
from tests.differential.differences import expected_of
from tests.differential.replay import recorded
from tests.tools.migrate.pairs import FAILED, HINT, INSTANCES, NO_ROUTE, a_call, change_of, failure, good

from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.changes import PHRASES, pretty
from modelserver.tools.migrate.comparison import mismatches
from modelserver.tools.migrate.requests import png
from modelserver.tools.migrate.rules import explain

# The responses differ because an earlier registration succeeded on one server only.
_FOLLOWING = re.compile(
    r"(styles|manifests)/predict |configurations/describe (nothing|remark|silent)|table/describe c_nothing|"
    r"registration/describe values: negative|\w+/unregister|"
    r"broken/(nothing is left|handler of the registration)"
)


def test_differences_are_explained_from_request_and_answers_alone():
    """``modelserver migrate`` names a rule that is about them, but for what follows from earlier answers, and
    for requests that failed with others in a batch, whose answers say how large it was.
    """
    wrong = {}
    for chapter in chapters():
        reference = recorded(chapter)
        for call in chapter.calls:
            name, answer = f"{chapter.name}/{call.name}", reference[call.name]
            expected, rules = expected_of(chapter, call, answer)
            if "isolation" in {rule.name for rule in rules}:
                expected = expected.but(headers={"x-batch-size": "4"})
            if expected.body is None:
                continue  # not compared
            result = explain(call, answer, expected) if mismatches(answer, expected) else [()]
            if not any(set(each) <= set(rules) for each in result) and not _FOLLOWING.match(name):
                wrong[name] = [[rule.name for rule in each] for each in result]

    assert wrong == {}


# Rules about what handlers are given: what they make of it is their own.
_OF_INPUT = {"json", "form-fields", "v1-instances", "phrase", "content-type"}
PREDICTION, UNKNOWN = a_call("/predictions/m"), failure(404, "Model not found: m")
DESCRIBE = Probe("", "management", "GET", "/models/m")
_FAILED = b'{\n  "code": 503,\n  "type": "InternalServerException",\n  "message": "Prediction failed"\n}\n'


def test_other_answers_are_not_explained():
    """No rule makes an excuse for an answer that is simply wrong, unless handlers are given other input."""
    explained = {}
    for chapter in chapters():
        reference = recorded(chapter)
        for call in chapter.calls[::4]:
            answer = reference[call.name]
            for status, body in ((503, _FAILED), (200, b'{"predictions": ["something else"]}'), (0, b"")):
                ours = answer.but(status=status, reason=PHRASES.get(status, ""), body=body)
                rules = {rule.name for rules in explain(call, answer, ours) for rule in rules} - _OF_INPUT
                if rules and 200 <= answer.status < 300 and answer.body:
                    explained[f"{chapter.name}/{call.name}"] = rules

    assert explained == {}


def test_the_fewest_rules_are_named():
    """Two where both are needed, alternatives where each would do."""
    request = Probe("", "management", "POST", "/models?url=m.mar")
    failed = Response(500, "", {}, pretty({"message": "Failed to start workers for model m version: 1"}))
    alternatives = explain(request, failed, Response(200, "OK", {}, b"{}"))
    request = Probe("", "inference", "POST", "/predictions/m")
    typed = Response(200, "OK", {"content-type": "application/json"}, b"1")
    together = explain(request, Response(200, "", {}, b"1"), typed)

    assert [[rule.name for rule in rules] for rules in alternatives] == [["loader"], ["null-fields"]]
    assert [[rule.name for rule in rules] for rules in together] == [["phrase", "content-type"]]


@pytest.mark.parametrize(
    ("rule", "call", "reference", "ours"),
    [
        ("exposed", PREDICTION, FAILED, failure(503, "Prediction failed: KeyError", request_id="1")),
        (
            "exposed",
            INSTANCES,
            failure(500, "Prediction failed", error="Prediction failed"),
            failure(500, "Prediction failed: K", error="Prediction failed: K", request_id="1"),
        ),
        ("exposed", PREDICTION, UNKNOWN, failure(404, "Model not found: m. There is: n")),
        ("rounding", PREDICTION, good({"a": [0.123456]}), good({"a": [0.123457]})),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), failure(500, HINT)),
        ("v1-instances", INSTANCES, good("whole"), good({"predictions": [1]})),
        ("v2", a_call("/v2/models/m/versions/1/infer"), NO_ROUTE, good(1)),
        ("v2", a_call("/v2/health/live", method="GET"), NO_ROUTE, good(1)),
        ("pictures", a_call("/predictions/m", png().replace(b"\x08\x02", b"\x08\x00", 1)), FAILED, good({})),
        ("numbers", DESCRIBE, good([{"batchSize": 0}]), good([{"batchSize": 1}])),
        ("timeouts", DESCRIBE, good([{"responseTimeout": 1}]), good([{"responseTimeout": 2}])),
        ("parallel-type", DESCRIBE, good([{"parallelType": ""}]), good([{"parallelType": "tp"}])),
    ],
)
def test_rule_takes_over_a_known_difference(rule, call, reference, ours):
    assert change_of(rule)(call, reference, ours).body == ours.body


@pytest.mark.parametrize(
    ("rule", "call", "reference", "ours"),
    [
        ("exposed", PREDICTION, FAILED, failure(500, "Prediction failed: KeyError")),
        ("exposed", PREDICTION, UNKNOWN, failure(404, "Model not found: n")),
        ("rounding", PREDICTION, good({"a": [0.12]}), good({"a": [0.13]})),
        ("rounding", PREDICTION, good([1]), good([1.0])),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), good({"predictions": [2]})),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), failure(500, "Prediction failed: ValueE")),
        ("pictures", a_call("/predictions/m", png()), FAILED, good({})),
        ("isolation", PREDICTION, FAILED, good(1)),
        ("v1-error", INSTANCES, Response(418, "", {}, b"no JSON"), good(1)),
        ("explanations", PREDICTION, FAILED, failure(501)),
        ("explanations", a_call("/explanations/m"), good({"target": "cat"}), good({"target": "dog"})),
        ("timeouts", PREDICTION, good({"responseTimeout": 1}), good({"responseTimeout": 2})),
        ("numbers", PREDICTION, good([{"batchSize": 0}]), good([{"batchSize": 1}])),
        ("numbers", DESCRIBE, good([{"batchSize": 4}]), good([{"batchSize": 1}])),
    ],
)
def test_rule_leaves_other_differences(rule, call, reference, ours):
    """TorchServe's answer stays as it is."""
    assert change_of(rule)(call, reference, ours) == reference
