"""Envelopes: several values out of one request, one answer for each request (reference 14.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.handlers.envelopes.conftest import make_context, put

from modelserver_handlers.envelopes import (
    ENVELOPES,
    Instance,
    JSONEnvelope,
    KserveEnvelope,
    KserveV2Envelope,
)
from modelserver_handlers.errors import PredictionException


@pytest.mark.parametrize(
    ("inputs", "answers", "outputs"),
    [
        ([2], [[1]], [{"a": 1}]),
        ([3], [[1], [2]], [{"a": 1, "b": 2}]),
        ([2, 2], [[1], [2]], [{"a": 1}, {"a": 2}]),
        ([2, 1], [[1], [2]], [{"a": 1}, {"a": 2}]),
        ([2], [], [{}]),
    ],
)
def test_inputs_may_be_answered_together(inputs: list[int], answers: Any, outputs: Any) -> None:
    """Fewer answers than inputs are the outputs of the first ones, if it is clear whose they are."""
    bodies = [
        {"inputs": [{"name": name, "shape": [1], "datatype": "FP32", "data": [0]} for name in "abc"[:count]]}
        for count in inputs
    ]
    result, _ = put(KserveV2Envelope, [{"body": body} for body in bodies], lambda *_: answers)

    assert [{each["name"]: each["data"][0] for each in one["outputs"]} for one in result] == outputs


@pytest.mark.parametrize(("inputs", "answers"), [([2, 2], 1), ([2, 2], 3), ([1], 2), ([2], 3)])
def test_answers_of_unclear_owners_fail_the_call(inputs: list[int], answers: int) -> None:
    """Where it is not clear whose an answer is, the call fails."""
    one = {"name": "a", "shape": [1], "datatype": "FP32", "data": [0]}
    bodies = [{"body": {"inputs": [one] * count}} for count in inputs]
    with pytest.raises(PredictionException, match="number of batch response mismatched"):
        put(KserveV2Envelope, bodies, lambda *_: [[0]] * answers)


# What is none of it


@pytest.mark.parametrize(
    ("name", "body", "fault"),
    [
        ("json", {"inputs": []}, 'no instances in the request: the body needs "instances", a list'),
        ("json", {"instances": {}}, 'expected "instances" to be a list, got dict'),
        ("json", b"\x89PNG", "the body is not JSON"),
        ("json", b"[" * 100_000, "the body is not JSON"),
        ("json", {"instances": [{"b64": "?"}]}, "the text under b64 is not base64"),
        ("kserve", "hello", "no instances in the request"),
        ("kserve", b"", "no instances in the request"),
        ("kservev2", {"instances": []}, 'no inputs in the request: the body needs "inputs", a list'),
        ("kservev2", {"inputs": [3]}, "inputs[0] needs name, shape, datatype, data"),
        (
            "kservev2",
            {"inputs": [{"name": "a", "shape": [2], "datatype": "FP32", "data": [1]}]},
            "inputs[0]: 1 values do not fill the shape [2]",
        ),
        (
            "kservev2",
            {"inputs": [{"name": "a", "shape": [-1, -1], "datatype": "FP32", "data": [1]}]},
            "inputs[0]: shape must be a size or a list of sizes, one of them may be -1",
        ),
        (
            "kservev2",
            {"inputs": [{"name": "a", "shape": [-1, 2], "datatype": "FP32", "data": [1, 2, 3]}]},
            "inputs[0]: 3 values do not fill the shape [-1, 2]",
        ),
        (
            "kservev2",
            {"inputs": [{"name": "a", "shape": "2", "datatype": "FP32", "data": [1]}]},
            "inputs[0]: shape must be a size or a list of sizes",
        ),
    ],
)
def test_malformed_requests_are_rejected_alone(name: str, body: Any, fault: str) -> None:
    """They get a 400 that says what is wrong, their neighbours their answers (F2, F9, F10)."""
    good = {
        "instances": ["good"],
        "inputs": [{"name": "i", "shape": [1], "datatype": "BYTES", "data": ["good"]}],
    }
    answers, context = put(ENVELOPES[name], [{"body": good}, {"body": body}, {"body": good}])

    assert [answer is None for answer in answers] == [False, True, False]
    assert "good" in json.dumps(answers[2])
    assert list(context._ms_rejections) == [1]
    status, message = context._ms_rejections[1]
    assert (status, fault in message) == (400, True)


def test_malformed_requests_do_not_call_the_handler() -> None:
    """The handler is not called for nothing."""
    answers, context = put(KserveEnvelope, [{"body": "a"}, {"body": "b"}], lambda *_: 1 / 0)

    assert answers == [None, None]
    assert len(context._ms_rejections) == 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "Invalid model predict output"),
        (("a", "b"), "Invalid model predict output"),
        (["a"], "number of batch response mismatched"),
        (["a", "b", "c"], "number of batch response mismatched"),
    ],
)
def test_handlers_that_break_the_contract_fail(returned: Any, message: str) -> None:
    """Answers that are not one per value are an error in TorchServe's words (F19)."""
    with pytest.raises(PredictionException, match=message) as refusal:
        put(KserveEnvelope, [{"body": {"instances": [1, 2]}}], lambda *_: returned)
    assert refusal.value.error_code == 503


# What the handler sees


def test_instances_of_the_server_are_answered_bare() -> None:
    """They reach the handler as they are (``json``: decoded) and are answered bare."""
    data = [Instance({"b64": "aGk="}), {"body": {"instances": [5]}}, Instance(7)]

    assert put(KserveEnvelope, data)[0] == [{"b64": "aGk="}, {"predictions": [5]}, 7]
    assert put(JSONEnvelope, data)[0] == [b"hi", '{"predictions": [5]}', 7]


def test_a_failing_handler_leaves_the_context_as_it_was() -> None:
    """After an exception the context shows the requests again."""
    context = make_context(2)
    state = context._ms_state

    def handler(*_: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        KserveEnvelope(handler).handle([{"body": {"instances": [1, 2, 3]}}] * 2, context)
    assert context._ms_state is state


def test_describing_passes_through() -> None:
    """A describe request has nothing to unfold."""
    answers, _ = put(JSONEnvelope, [{}], lambda values, _: [{"saw": values}], describe="True")

    assert answers == [{"saw": [{}]}]


def test_malformed_requests_raise_without_our_context() -> None:
    """A handler's unit test may call an envelope with any context: then a malformed request raises."""

    class Other:
        def get_request_header(self, idx: int, key: str) -> None:
            return None

    assert KserveEnvelope(lambda values, _: values).handle([{"body": {"instances": [1]}}], Other()) == [
        {"predictions": [1]}
    ]
    with pytest.raises(PredictionException, match="no instances"):
        KserveEnvelope(lambda values, _: values).handle([{"body": 1}], Other())


def test_the_two_halves_can_be_called() -> None:
    """``parse_input`` and ``format_output`` are there as in TorchServe."""
    envelope = KserveEnvelope(lambda values, _: values)

    assert envelope.parse_input([{"body": {"instances": [1, 2]}}, {"body": {"instances": [3]}}]) == [1, 2, 3]
    assert envelope.format_output(["a", "b", "c"]) == [{"predictions": ["a", "b"]}, {"predictions": ["c"]}]
