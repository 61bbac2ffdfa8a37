import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.envelopes import (
    ENVELOPES,
    BodyEnvelope,
    Instance,
    JSONEnvelope,
    KserveEnvelope,
    KserveV2Envelope,
)
from modelserver_handlers.errors import PredictionException


def make_context(size, **properties):
    """A context in the middle of a batch of ``size`` requests."""
    context = Context("m", "/", {"model": {"modelVersion": "2.0"}}, size, None, "0")
    headers = [{"who": str(number)} for number in range(size)]
    own = {"explain": "False", "url_path": "", **properties}
    ids = [f"id-{number}" for number in range(size)]
    parameters = [{"k": number} for number in range(size)]
    context._ms_begin(BatchState(ids, headers, parameters=parameters, properties=[own] * size))
    return context


def put(kind, data, handler=None, **properties):
    """What the envelope answers; the handler echoes unless given. With its context."""
    context = make_context(len(data), **properties)
    envelope = kind(handler or (lambda values, _: values))
    return envelope.handle(data, context), context


def tensor(**changes):
    return {"name": "a", "shape": [1], "datatype": "FP32", "data": [0], **changes}


def test_context_shows_the_request_of_each_value():
    def handler(values, context):
        return [
            [
                context.get_request_id(at),
                context.get_request_header(at, "who"),
                context.get_request_parameters(at)["k"],
            ]
            for at in range(len(values))
        ]

    rows = [{"body": {"instances": [1, 2]}}, {"body": {"instances": []}}, {"body": {"instances": [3]}}]
    answers, context = put(KserveEnvelope, rows, handler)

    assert [answer["predictions"] for answer in answers] == [[["id-0", "0", 0]] * 2, [], [["id-2", "2", 2]]]
    assert context.get_request_id(1) == "id-1"


def test_statuses_and_headers_reach_the_request():
    def handler(values, context):
        context.set_response_status(201, "made", 2)
        context.set_response_header(2, "x-own", "yes")
        return values

    _, context = put(KserveEnvelope, [{"body": {"instances": [1, 2]}}, {"body": {"instances": [3]}}], handler)

    assert (context.get_response_status(0)[0], context.get_response_status(1)) == (200, (201, "made"))
    assert context.get_response_headers(1) == {"x-own": "yes"}


def test_a_rejected_value_rejects_its_request():
    def handler(values, context):
        context.reject(1, "too large", 422)
        context.reject(3, "too small")
        return [None if at in (1, 3) else value for at, value in enumerate(values)]

    rows = [{"body": {"instances": [1, 2]}}, {"body": {"instances": [3]}}, {"body": {"instances": [4]}}]
    answers, context = put(KserveEnvelope, rows, handler)

    assert answers == [None, {"predictions": [3]}, None]
    assert context._ms_rejections == {0: (422, "instances[1]: too large"), 2: (400, "too small")}


@given(st.lists(st.lists(st.integers(), max_size=4) | st.none(), max_size=6))
def test_every_request_gets_its_own(batch):
    """Whatever the numbers of instances, and whichever requests are malformed (F18, F23)."""
    rows = [{"body": {"no": 1} if values is None else {"instances": values}} for values in batch]
    # The handler is not called for nothing.
    answers, context = put(KserveEnvelope, rows, lambda values, _: [values[0], *values[1:]])

    assert answers == [None if values is None else {"predictions": values} for values in batch]
    assert sorted(context._ms_rejections) == [at for at, values in enumerate(batch) if values is None]


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
def test_inputs_may_be_answered_together(inputs, answers, outputs):
    bodies = [{"inputs": [tensor(name=name) for name in "abc"[:count]]} for count in inputs]
    result, _ = put(KserveV2Envelope, [{"body": body} for body in bodies], lambda *_: answers)

    assert [{each["name"]: each["data"][0] for each in one["outputs"]} for one in result] == outputs


@pytest.mark.parametrize(("inputs", "answers"), [([2, 2], 1), ([2, 2], 3), ([1], 2), ([2], 3)])
def test_answers_of_unclear_owners_fail_the_call(inputs, answers):
    bodies = [{"body": {"inputs": [tensor()] * count}} for count in inputs]
    with pytest.raises(PredictionException, match="number of batch response mismatched"):
        put(KserveV2Envelope, bodies, lambda *_: [[0]] * answers)


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
        *(
            ("kservev2", {"inputs": [tensor(shape=shape, data=data)]}, f"inputs[0]: {fault}")
            for shape, data, fault in (
                ([2], [1], "1 values do not fill the shape [2]"),
                ([-1, -1], [1], "shape must be a size or a list of sizes, one of them may be -1"),
                ([-1, 2], [1, 2, 3], "3 values do not fill the shape [-1, 2]"),
                ("2", [1], "shape must be a size or a list of sizes"),
            )
        ),
    ],
)
def test_malformed_requests_are_rejected_alone(name, body, fault):
    """They get a 400 that says what is wrong, their neighbours their answers (F2, F9, F10)."""
    good = {"instances": ["good"], "inputs": [tensor(datatype="BYTES", data=["good"])]}
    answers, context = put(ENVELOPES[name], [{"body": good}, {"body": body}, {"body": good}])

    assert [answer is None for answer in answers] == [False, True, False]
    assert "good" in json.dumps(answers[2])
    assert list(context._ms_rejections) == [1]
    status, message = context._ms_rejections[1]
    assert (status, fault in message) == (400, True)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "Invalid model predict output"),
        (("a", "b"), "Invalid model predict output"),
        (["a"], "number of batch response mismatched"),
        (["a", "b", "c"], "number of batch response mismatched"),
    ],
)
def test_handlers_that_break_the_contract_fail(returned, message):
    """Answers that are not one per value are an error in TorchServe's words (F19)."""
    with pytest.raises(PredictionException, match=message) as refusal:
        put(KserveEnvelope, [{"body": {"instances": [1, 2]}}], lambda *_: returned)
    assert refusal.value.error_code == 503


def test_instances_of_the_server_are_answered_bare():
    data = [Instance({"b64": "aGk="}), {"body": {"instances": [5]}}, Instance(7)]

    assert put(KserveEnvelope, data)[0] == [{"b64": "aGk="}, {"predictions": [5]}, 7]
    assert put(JSONEnvelope, data)[0] == [b"hi", '{"predictions": [5]}', 7]


def test_a_failing_handler_leaves_the_context_as_it_was():
    context = make_context(2)
    state = context._ms_state

    with pytest.raises(ValueError, match="no"):
        KserveEnvelope(Mock(side_effect=ValueError("no"))).handle([{"body": {"instances": [1]}}] * 2, context)
    assert context._ms_state is state


def test_describing_passes_through():
    answers, _ = put(JSONEnvelope, [{}], lambda values, _: [{"saw": values}], describe="True")
    assert answers == [{"saw": [{}]}]


def test_malformed_requests_raise_without_our_context():
    other = SimpleNamespace(get_request_header=lambda idx, key: None)
    envelope = KserveEnvelope(lambda values, _: values)

    assert envelope.handle([{"body": {"instances": [1]}}], other) == [{"predictions": [1]}]
    with pytest.raises(PredictionException, match="no instances"):
        envelope.handle([{"body": 1}], other)


def test_the_two_halves_can_be_called():
    envelope = KserveEnvelope(lambda values, _: values)

    assert envelope.parse_input([{"body": {"instances": [1, 2]}}, {"body": {"instances": [3]}}]) == [1, 2, 3]
    assert envelope.format_output(["a", "b", "c"]) == [{"predictions": ["a", "b"]}, {"predictions": ["c"]}]


@pytest.mark.parametrize(
    ("request_", "value"),
    [
        ({"body": {"instances": [1]}}, {"instances": [1]}),
        ({"data": "d", "body": "b"}, "d"),
        ({"data": "", "body": "b"}, "b"),
        ({"other": 1}, None),
        (Instance({"body": 1}), {"body": 1}),
    ],
)
def test_envelope_body_takes_data_or_body(request_, value):
    assert put(BodyEnvelope, [request_])[0] == [value]


def test_json_joins_instances():
    handler = Mock(side_effect=lambda values, _: list(range(len(values))))
    rows = [
        {"body": {"instances": [1, {"b64": "aGk="}]}},
        {"data": b'{"instances": [{"x": {"b64": "aGk="}, "y": 2}]}'},
        {"instances": []},
    ]
    answers, _ = put(JSONEnvelope, rows, handler)
    ((values, _),) = (call.args for call in handler.call_args_list)

    assert values == [1, b"hi", {"x": b"hi", "y": 2}]
    assert answers == ['{"predictions": [0, 1]}', '{"predictions": [2]}', '{"predictions": []}']


def test_json_makes_lists_of_tensors():
    rows = [{"body": {"instances": [1, 2]}}]
    (answer,), _ = put(JSONEnvelope, rows, lambda *_: [torch.ones(2), np.float32(0.5)])

    assert json.loads(answer) == {"predictions": [[1.0, 1.0], 0.5]}


def test_kserve_answers_explanations():
    rows = [{"body": {"instances": [1, {"b64": "aGk="}]}}, {"body": b'{"instances": [3]}'}]
    answers, _ = put(KserveEnvelope, rows, explain="True")

    assert answers == [{"explanations": [1, {"b64": "aGk="}]}, {"explanations": [3]}]


@pytest.mark.parametrize(
    ("answer", "datatype", "data"),
    [
        (np.ones((1, 2), np.float32), "FP32", [1.0, 1.0]),
        (torch.tensor([[1], [2]], dtype=torch.uint8), "UINT8", [1, 2]),
        (np.array([True]), "BOOL", [True]),
        (np.float64(2.5), "FP64", [2.5]),
        ([1, 2.5], "FP64", [1, 2.5]),
        ([True, 2], "INT64", [True, 2]),
        ({"label": 0.5}, "BYTES", [{"label": 0.5}]),
        ("text", "BYTES", ["text"]),
        ([], "FP64", []),
    ],
)
def test_outputs_have_the_widest_datatype(answer, datatype, data):
    rows = [{"body": {"inputs": [tensor(name="i", shape=[0], data=[])]}}]
    (result,), _ = put(KserveV2Envelope, rows, lambda *_: [answer])

    assert result["outputs"] == [{"name": "i", "datatype": datatype, "data": data, "shape": [len(data)]}]


@pytest.mark.parametrize(
    ("shape", "datatype", "data", "seen"),
    [
        (-1, "BYTES", "this year business is good", "this year business is good"),
        ([-1], "BYTES", ["picture"], "picture"),
        (3, "INT64", [1, 2, 3], [1, 2, 3]),
        ([2, -1], "FP32", [1, 2, 3, 4], [[1, 2], [3, 4]]),
        (-1, "FP32", [], []),
        ([1], "INT64", 7, [7]),
    ],
)
def test_shapes_of_torchserves_samples_are_read(shape, datatype, data, seen):
    one = tensor(shape=shape, datatype=datatype, data=data)
    (value,) = KserveV2Envelope(lambda values, _: values).parse_input([{"body": {"inputs": [one]}}])

    assert value["data"] == seen


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_flat_data_is_reshaped(shape):
    flat = list(range(int(np.prod(shape))))
    nested = np.reshape(flat, shape).tolist()

    for data in (flat, nested):
        one = tensor(shape=shape, datatype="INT64", data=data)
        (value,) = KserveV2Envelope(lambda values, _: values).parse_input([{"body": {"inputs": [one]}}])
        assert value == {**one, "data": nested}
