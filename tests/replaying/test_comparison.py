"""Answers compared with recorded ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modelserver.replaying.comparison import Tolerance, difference
from modelserver.replaying.sender import Answered


def compared(make_call, then: bytes, now: bytes, **changes) -> str:
    """The difference of two bodies."""
    call = make_call(answer=then, **changes)
    return difference(call, Answered(0, 0, 200, b"", now), Tolerance(1e-3))


def test_statuses_and_faults(make_call) -> None:
    """Come before the bodies."""
    call = make_call()

    assert difference(call, Answered(0, 0, 200, b"", b"answer"), Tolerance()) == ""
    assert difference(call, Answered(0, 0, 503, b"", b"busy"), Tolerance()) == "status 200 became 503: 'busy'"
    assert difference(call, Answered(0, 0, fault="no answer"), Tolerance()) == "no answer"


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
        (b'{"id": "made up", "x": 1}', b'{"id": "anew", "x": 1}', ""),
        (b"text", b"other", "'text' became 'other'"),
        (b"[1]", b"\xff", "'[1]' became '\ufffd'"),
    ],
)
def test_bodies(make_call, then, now, said) -> None:
    """JSON is compared by value, numbers within the tolerance, anything else byte by byte."""
    assert compared(make_call, then, now) == said


def test_an_id_that_the_client_chose(make_call) -> None:
    """Must come back."""
    asked = {"target": "/v2/models/m/infer", "body": b'{"id": "mine"}'}

    assert compared(make_call, b'{"id": "mine"}', b'{"id": "other"}', **asked) == 'id: "mine" became "other"'


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

    assert compared(make_call, then, body([1.0001, 2])) == ""
    assert compared(make_call, then, body([1, 3])) == "output y[1]: 2 became 3"
    assert compared(make_call, then, body([1, 2], b"\x01\0\0\0b")) == "output t: its bytes differ"
    assert compared(make_call, then, then[:-1]) == "13 bytes of tensors became 12"
