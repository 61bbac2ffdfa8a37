import json
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from modelserver.errors import BadRequest, PayloadTooLarge
from modelserver.surface.api.parameters import Parameters


def request(query: list[tuple[str, str]] | None = None, body: bytes = b"", content_type: str = "") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode())] if content_type else []
    scope = {"type": "http", "query_string": urlencode(query or []).encode(), "headers": headers}
    return Request(scope, receive)


async def test_parameters_are_bounded():
    with pytest.raises(PayloadTooLarge, match="larger than 102400 bytes"):
        await Parameters.of_registration(request(body=b" " * 102_401, content_type="application/json"))
    with pytest.raises(BadRequest, match="url has 9000 characters, 8192 are allowed"):
        Parameters({"url": "." * 9000}).text("url")


@pytest.mark.parametrize(
    ("values", "number"),
    [({"n": "5"}, 5), ({"n": " 7 "}, 7), ({"n": "-1"}, -1), ({"n": 3}, 3), ({"n": "0"}, 0), ({}, 9)],
)
def test_whole_numbers_are_read_from_query_and_json(values, number, caplog):
    assert Parameters(values).integer("n", 9) == number
    assert Parameters({}).integer("n") is None
    assert not caplog.records


@pytest.mark.parametrize("value", ["", "abc", "1.5", "1e3", True, [1], "9" * 5000])
def test_what_is_no_number_takes_the_default_with_a_warning(value, caplog):
    """The server is as lenient as TorchServe, but logs one short line (design, section 9)."""
    assert Parameters({"n": value}).integer("n", 9) == 9

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "'n'" in record.getMessage() or "n=" in record.getMessage()
    assert len(record.getMessage()) < 250


@pytest.mark.parametrize(
    ("value", "truth"),
    [("true", True), ("TRUE", True), (True, True), ("false", False), ("1", False), ("", False)],
)
def test_booleans_are_true_only_for_true(value, truth):
    """``true`` may be in any case; every other value is false (reference 4.1)."""
    assert Parameters({"b": value}).boolean("b") is truth
    assert Parameters({}).boolean("b") is None


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8"])
async def test_registration_by_json_ignores_the_query(content_type):
    """A JSON body's fields are the parameters, null ones are not given (reference 5.2)."""
    body = json.dumps({"url": "a.mar", "batch_size": 4, "handler": None}).encode()

    query = [("handler", "h"), ("url", "b.mar")]
    parameters = await Parameters.of_registration(request(query, body, content_type))

    assert (parameters.text("url"), parameters.text("handler")) == ("a.mar", None)
    assert parameters.integer("batch_size") == 4


@pytest.mark.parametrize("content_type", ["", "application/x-www-form-urlencoded", "text/plain"])
async def test_registration_otherwise_reads_the_query(content_type):
    """Any other body is not looked at (reference 5.2); the first of repeated parameters counts (4.1)."""
    query = [("url", "b.mar"), ("url", "c.mar"), ("handler", "")]
    parameters = await Parameters.of_registration(request(query, b'{"url": "a.mar"}', content_type))

    assert [parameters.text(name) for name in ("url", "handler", "model_name")] == ["b.mar", "", None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
    ],
    ids=lambda value: repr(value[:9]),
)
async def test_registration_by_broken_json_is_a_bad_request(body, message):
    """What is no JSON object is a 400 (F1, F2, F3)."""
    with pytest.raises(BadRequest, match=message):
        await Parameters.of_registration(request(body=body, content_type="application/json"))


@pytest.mark.parametrize(
    ("read", "value", "result"),
    [
        (Parameters.whole, "5", 5),
        (Parameters.whole, " -1 ", -1),
        (Parameters.whole, 3, 3),
        (Parameters.whole, "", None),
        (Parameters.switch, "TRUE", True),
        (Parameters.switch, False, False),
        (Parameters.switch, "", None),
    ],
)
def test_own_parameters_may_be_empty(read, value, result):
    """Those that TorchServe does not have are read strictly."""
    assert read(Parameters({"n": value}), "n") is result


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (Parameters.whole, "abc", "n=abc: a whole number"),
        (Parameters.whole, "1.5", "n=1.5: a whole number"),
        (Parameters.whole, True, "n=True: a whole number"),
        (Parameters.switch, "perhaps", "n=perhaps: true or false"),
    ],
)
def test_own_parameters_are_read_strictly(read, value, message):
    with pytest.raises(BadRequest, match=message):
        read(Parameters({"n": value}), "n")


def test_unknown_names_are_reported_with_a_guess(caplog):
    parameters = Parameters({"batchsize": 8, "zzz": 1, "url": "u"})
    parameters.warn_of_unknown(("url", "batch_size"))

    assert parameters.warnings == [
        "The parameter 'batchsize' is unknown and is ignored; did you mean batch_size?",
        "The parameter 'zzz' is unknown and is ignored",
    ]
    assert [record.getMessage() for record in caplog.records] == parameters.warnings
    many = Parameters({f"{'n' * 1000}{number}": "" for number in range(1000)})
    many.warn_of_unknown(("url",))
    assert len(many.warnings) == 10
    assert max(map(len, many.warnings)) < 200


def test_unusable_values_are_reported():
    parameters = Parameters({"batch_size": "abc", "synchronous": "yes", "s3_sse_kms": "False"})
    assert parameters.integer("batch_size") is None
    assert (parameters.boolean("synchronous"), parameters.boolean("s3_sse_kms")) == (False, False)

    assert parameters.warnings == [
        "The parameter batch_size='abc' is not a whole number, its default is used",
        "The parameter synchronous='yes' is neither true nor false, false is used",
    ]
