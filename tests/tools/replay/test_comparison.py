"""Answers compared with recorded ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modelserver.ext.rollout.agreement import Tolerance
from modelserver.tools.replay.comparison import difference
from modelserver.tools.replay.sender import TimedResponse


def compared(make_call, then: bytes, now: bytes, **changes) -> str:
    """The difference of two bodies."""
    call = make_call(answer=then, **changes)
    return difference(call, TimedResponse(0, 0, 200, b"", now), Tolerance(1e-3))


def test_statuses_and_faults(make_call) -> None:
    """Come before the bodies."""
    call = make_call()

    assert difference(call, TimedResponse(0, 0, 200, b"", b"answer"), Tolerance()) == ""
    assert (
        difference(call, TimedResponse(0, 0, 503, b"", b"busy"), Tolerance())
        == "status 200 became 503: 'busy'"
    )
    assert difference(call, TimedResponse(0, 0, fault="no answer"), Tolerance()) == "no answer"


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (b"[1.0, 2]", b"[1.0001, 2]", ""),
        (b"[1.0, 2]", b"[1.1, 2]", "[0]: 1.0 became 1.1"),
        (b"[1, 2]", b"[1]", "[1, 2] became [1]"),
        (b'{"a": {"b": [NaN]}}', b'{ "a": {"b": [NaN]} }', ""),
        (b'{"a": {"b": "x"}}', b'{"a": {"b": "y"}}', 'a.b: "x" became "y"'),
        (b"[true]", b"[1]", "[0]: true became 1"),
        (b'{"predictions": [1], "batchId": "1"}', b'{"predictions": [1], "batchId": "2"}', ""),
        (b'{"id": 281, "x": 1}', b'{"id": 282, "x": 1}', "id: 281 became 282"),
        (b"text", b"other", "'text' became 'other'"),
        (b"[1]", b"\xff", "'[1]' became '\ufffd'"),
    ],
)
def test_bodies(make_call, then, now, said) -> None:
    """JSON is compared by value, numbers within the tolerance, anything else byte by byte."""
    assert compared(make_call, then, now) == said


@pytest.mark.parametrize("depth", [100, 700, 100_000])
def test_deep_json(make_call, depth) -> None:
    """Differs, in short, whether or not the interpreter can walk through it."""
    deep = b"[" * depth + b"%d" + b"]" * depth

    said = compared(make_call, deep % 1, deep % 2)

    assert " became " in said
    assert len(said) < 500
    assert compared(make_call, deep % 1, deep % 1) == ""


@pytest.mark.parametrize(
    ("datatype", "then", "now", "said"),
    [
        ("BF16", b"\x80\x3f", b"\x81\x3f", "output y[0]: 1 became 1.00781"),
        ("BF16", b"\x80\x7f", b"\x80\x7f", ""),
        ("INT64", (2**60).to_bytes(8, "little"), (2**60 + 1).to_bytes(8, "little"), "output y[0]: "),
        ("BOOL", b"\0", b"\1", "output y: its bytes differ"),
    ],
)
def test_each_datatype(make_call, datatype, then, now, said) -> None:
    """Exactly, where no tolerance is asked for: also integers that are the same as floats."""
    parameters = {"binary_data_size": len(then)}
    output = {"name": "y", "datatype": datatype, "shape": [1], "parameters": parameters}
    head = json.dumps({"outputs": [output]}).encode()
    call = make_call(answer=head + then)
    found = difference(call, TimedResponse(0, 0, 200, b"", head + now), Tolerance(0, 0))

    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_an_answer_to_head(make_call) -> None:
    """Has no body, though one was made when it was recorded."""
    assert compared(make_call, b"recorded", b"", method=b"HEAD") == ""


def test_ids_of_the_open_inference_protocol(make_call) -> None:
    """The client's must come back; the server makes up another one each time."""
    path = "/v2/models/m/infer"
    said = compared(make_call, b'{"id": "mine"}', b'{"id": "other"}', target=path, body=b'{"id": "mine"}')

    assert said == 'id: "mine" became "other"'
    assert compared(make_call, b'{"id": "made up"}', b'{"id": "anew"}', target=path, body=b"{}") == ""


def test_tensors_in_binary(make_call) -> None:
    """Numbers after the JSON are compared within the tolerance, texts byte by byte."""
    outputs = [
        {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        {"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
    ]
    head = json.dumps({"id": "1", "outputs": outputs}).encode()

    def body(numbers, text=b"\x01\0\0\0a"):
        return head.replace(b'"1"', b'"%d"' % id(numbers)) + np.array(numbers, "<f4").tobytes() + text

    then = body([1, 2])

    def said(now):
        return compared(make_call, then, now, target="/v2/models/m/infer", body=b"{}")

    assert said(body([1.0001, 2])) == ""
    assert said(body([1, 3])) == "output y[1]: 2 became 3"
    assert said(body([1, 2], b"\x01\0\0\0b")) == "output t: its bytes differ"
    assert said(then[:-1]) == "13 bytes of tensors became 12"
