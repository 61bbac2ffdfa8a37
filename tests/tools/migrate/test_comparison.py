import pytest

from modelserver.tools.migrate.calls import Response
from modelserver.tools.migrate.comparison import masked, mismatches, unmasked, without_additions


def answer(body=b"", status=200, **headers):
    return Response(status, "OK", {name.replace("_", "-"): value for name, value in headers.items()}, body)


def test_what_differs_from_run_to_run_is_masked():
    body = b'{\n  "pid": 77,\n  "startTime": "now",\n  "p": 0.123456789\n}'
    got = masked(answer(body, x_request_id="1", date="today"))

    assert got.headers == {"x-request-id": "<uuid>"}
    assert unmasked(got.body or b"") == {"pid": "<pid>", "startTime": "<time>", "p": 0.12345}
    text = unmasked(b'{"message": "a: <reason>", "pid": <pid>}')
    assert text == {"message": "a: <reason>", "pid": "<pid>"}


def test_what_a_model_says_is_not_masked():
    one, other = (f"2f0c1d3e-0000-4000-8000-00000000000{number}" for number in (1, 2))
    body = f'{{"id": "281", "gpu": true, "found": "{one}", "request": "%s", "p": 0.12345%s}}'
    got = masked(answer((body % (other, "6789")).encode(), x_request_id=other), by_handler=True)

    assert got.body == (body % ("<uuid>", "")).encode()


@pytest.mark.parametrize(
    ("reference", "ours", "message"),
    [
        (answer(), answer(x_batch_id="1"), []),
        (answer(b"a"), answer(b"b"), ["body: TorchServe b'a',\n      modelserver b'b'"]),
        (answer(), answer(status=500), ["status: TorchServe 200 'OK', modelserver 500 'OK'"]),
        (answer(x="1"), answer(), ["header x: TorchServe '1', modelserver None"]),
    ],
)
def test_mismatches_are_reported_in_lines(reference, ours, message):
    assert mismatches(reference, ours) == message


def test_fields_that_only_modelserver_has_are_left_out():
    body = b'[\n  {\n    "modelName": "m",\n    "batching": {}\n  }\n]\n'

    assert without_additions(body) == b'[\n  {\n    "modelName": "m"\n  }\n]\n'
    assert without_additions(b'{"batching": 1}') == b'{"batching": 1}'
