import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.errors import BadRequest, HandlerError, ModelNotFound, ResponseTimeout
from modelserver.surface.http.answers import clean, error_body, header_block, pretty, status_line


@pytest.mark.parametrize(
    ("status", "phrase", "line"),
    [
        (200, "", b"HTTP/1.1 200 OK\r\n"),
        (404, "", b"HTTP/1.1 404 Not Found\r\n"),
        (599, "", b"HTTP/1.1 599 \r\n"),
        (201, "Made it", b"HTTP/1.1 201 Made it\r\n"),
        (0, "", b"HTTP/1.1 500 Internal Server Error\r\n"),
        (1000, "Too far", b"HTTP/1.1 500 Internal Server Error\r\n"),
        (200, "a\r\nX: y", b"HTTP/1.1 200 a  X: y\r\n"),
        (200, "gr\xfcn \u20ac", b"HTTP/1.1 200 gr\xfcn ?\r\n"),
    ],
)
def test_status_line_is_always_one_valid_line(status, phrase, line):
    """A phrase of the handler's replaces the standard one; what is no status is 500 (F13)."""
    assert status_line(status, phrase) == line


@given(st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=3))
def test_no_text_begins_another_header(headers):
    """Whatever a handler puts into names and values, there is one line for each at most (F13)."""
    block = header_block(headers)
    assert block.count(b"\n") == block.count(b"\r") == block.count(b"\r\n") <= len(headers)


@pytest.mark.parametrize(
    ("headers", "block"),
    [
        ([], b""),
        ([("X-A", "1"), ("x-a", "2")], b"X-A: 1\r\nx-a: 2\r\n"),
        *(
            ([(name, "5"), ("X-A", "1")], b"X-A: 1\r\n")
            for name in ("Content-Length", "transfer-encoding", "Connection", "Keep-Alive", "upgrade")
        ),
    ],
)
def test_headers_are_lines_in_order_but_for_those_of_framing(headers, block):
    assert header_block(headers) == block


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("plain \u00fc", "plain \u00fc"), ("a\tb", "a\tb"), ("a\r\nb\x00\x1b\x7f", "a  b   ")],
)
def test_control_characters_become_spaces(text, cleaned):
    assert clean(text) == cleaned


def test_json_is_pretty_and_without_nulls():
    """Two spaces, a newline at the end, null fields left out at every depth (reference 4.3)."""
    value: dict[str, Any] = {"a": None, "b": [{"c": None, "d": "<\u00fc>"}, None], "e": 0, "f": ""}

    assert pretty(value).decode() == (
        '{\n  "b": [\n    {\n      "d": "<\u00fc>"\n    },\n    null\n  ],\n  "e": 0,\n  "f": ""\n}\n'
    )
    assert json.loads(pretty({"a": "\ud800"})) == {"a": "?"}


@pytest.mark.parametrize(
    "value",
    [
        {"models": [{"name": 'ä\x7f\u2028"\\\x1f', "empty": [], "none": {}, "n": [1, -0.5, True, 1e-3]}]},
        [[1, [2, {}]], "text"],
        [],
        {"large": 1 << 70, "broken": "\ud800"},
    ],
)
def test_json_is_indented_as_by_the_standard_library(value):
    expected = json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    assert pretty(value) == expected


def test_json_leaves_no_reference_cycle():
    gc.collect()
    gc.disable()
    try:
        pretty({"code": 404, "message": "Model not found"})
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("error", "kserve", "status", "kserve_message"),
    [
        (ModelNotFound.named("m"), False, 404, None),
        (ModelNotFound.named("m"), True, 404, "Model with name m does not exist."),
        (BadRequest("why"), True, 400, "why"),
        (ResponseTimeout(), False, 500, None),
        (ResponseTimeout(), True, 504, ResponseTimeout().message),
        (HandlerError("x", 503, 500), False, 503, None),
        (HandlerError("x", 503, 500), True, 500, "x"),
    ],
)
def test_error_body_has_the_fields_of_its_route(error, kserve, status, kserve_message):
    """Code, type and message on TorchServe's routes; on V1, KServe's `error` beside them, in KServe's words
    where it has some, and statuses of its own (design, section 9).
    """
    expected = {"code": status, "type": error.type, "message": error.message}
    if kserve_message is not None:
        expected["error"] = kserve_message
    code, body = error_body(error, form="kserve" if kserve else "")

    assert (code, json.loads(body)) == (status, expected)


@pytest.mark.parametrize("batch_id", ["", "b"])
def test_error_of_a_model_that_batches_has_the_keys_of_kserves_batcher(batch_id):
    """Also of a request that was in no batch (kserve reference 2.2)."""
    document = json.loads(error_body(BadRequest("why"), form="kserve", batch_id=batch_id)[1])

    assert list(document) == ["code", "type", "message", "error", "batchId", "predictions"]
    assert (document["batchId"], document["predictions"]) == (batch_id, None)


def test_what_a_client_sent_is_not_repeated_without_end():
    """A fault may quote a text of megabytes, which would be encoded twice on the event loop."""
    _, body = error_body(BadRequest("input '" + "x" * 6_000_000 + "'"), form="kserve")

    assert len(body) < 40_000
    assert json.loads(body)["error"].startswith("input 'xxx")
