from urllib.parse import quote

import grpc
import pytest

from modelserver import errors
from modelserver.engine.pools.spec import no_worker
from modelserver.ext.grpc.statuses import (
    RefusedRequest,
    StatusCode,
    code_of_http,
    http_status,
    management_status,
    open_inference_status,
    prediction_status,
    torchserve_status,
)

_TABLE = {
    400: 3,
    401: 16,
    403: 7,
    404: 5,
    409: 10,
    413: 8,
    429: 8,
    416: 11,
    499: 1,
    501: 12,
    503: 14,
    504: 4,
    402: 9,
    418: 9,
    500: 13,
    507: 13,
    599: 13,
    200: 13,
}


def test_codes_are_those_of_grpc():
    assert {code.name: code.value for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


@pytest.mark.parametrize(("status", "code"), _TABLE.items())
def test_http_status_has_its_code(status, code):
    """The table of reference 20."""
    assert code_of_http(status) == code


@pytest.mark.parametrize("code", StatusCode)
def test_code_counts_as_success_or_whose_fault(code):
    like = http_status(code) // 100
    servers = {"UNKNOWN", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED", "DATA_LOSS"}
    assert like == (2 if code is StatusCode.OK else 5 if code.name in servers else 4)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            errors.ModelNotFound.named("m"),
            "Model not found: m\norg.pytorch.serve.archive.model.ModelNotFoundException",
        ),
        (
            errors.ModelVersionNotFound.named("m", "2"),
            (
                "Model version: 2 does not exist for model: m\n"
                "org.pytorch.serve.archive.model.ModelVersionNotFoundException"
            ),
        ),
        (errors.BadRequest("x"), "x\nBadRequestException.()"),
        (errors.ServiceUnavailable("full"), "full\nInternalServerException.()"),
    ],
)
def test_refused_prediction_is_internal(error, text):
    """Whatever the reason, it is INTERNAL, as a recording of TorchServe 0.12 has it."""
    assert torchserve_status(RefusedRequest(error)) == (StatusCode.INTERNAL, text)
    if error.status != 503:
        assert prediction_status(RefusedRequest(error)) == (StatusCode.INTERNAL, text)


@pytest.mark.parametrize("error", [errors.ServiceUnavailable("full"), no_worker("m")])
def test_refusals_that_clients_may_repeat(error):
    """What is 503 over REST is UNAVAILABLE in all services, the code on which clients of gRPC retry."""
    code, text = prediction_status(RefusedRequest(error))

    assert code is StatusCode.UNAVAILABLE
    assert text == f"{error.message}\norg.pytorch.serve.http.ServiceUnavailableException"
    assert open_inference_status(error) == (StatusCode.UNAVAILABLE, error.message)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.HandlerError("m", 503), StatusCode.UNAVAILABLE),
        (errors.WorkerDied(), StatusCode.INTERNAL),
        (errors.DeadlineExceeded("m"), StatusCode.DEADLINE_EXCEEDED),
        (errors.PayloadTooLarge("m"), StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_failed_prediction_has_the_code_of_its_status(error, code):
    result, text = prediction_status(error)
    assert result is code
    assert text == f"{error.message}\norg.pytorch.serve.http.{error.type}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ModelNotFound("m"), StatusCode.NOT_FOUND),
        (errors.BadRequest("m"), StatusCode.INVALID_ARGUMENT),
        (errors.InvalidModel("m"), StatusCode.INVALID_ARGUMENT),
        (errors.DownloadFailed("m"), StatusCode.INVALID_ARGUMENT),
        (errors.StartFailed("m"), StatusCode.INTERNAL),
        (errors.StartFailed("m", 507), StatusCode.INTERNAL),
        (errors.InternalError("m"), StatusCode.INTERNAL),
        (errors.MethodNotAllowed(), StatusCode.PERMISSION_DENIED),
        (errors.Conflict("m"), StatusCode.UNKNOWN),
        (errors.ModelFileExists("m"), StatusCode.INTERNAL),
        (errors.InvalidModelVersion("m"), StatusCode.UNKNOWN),
    ],
)
def test_management_error_has_its_code(error, code):
    """The table of reference 20; what TorchServe does not map is UNKNOWN, but has a text."""
    result, text = management_status(error)
    assert result is code
    assert text


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.ModelNotFound.named("m"), StatusCode.NOT_FOUND, "Model with name m does not exist."),
        (errors.BadRequest("b"), StatusCode.INVALID_ARGUMENT, "b"),
        (errors.ServiceUnavailable("s"), StatusCode.UNAVAILABLE, "s"),
        (errors.ResponseTimeout("t"), StatusCode.DEADLINE_EXCEEDED, "t"),
        (errors.HandlerError("h", 503, 500), StatusCode.INTERNAL, "h"),
        (errors.MethodNotAllowed(message="off"), StatusCode.PERMISSION_DENIED, "off"),
    ],
)
def test_open_inference_error_has_its_code(error, code, text):
    """The code follows the status and the text that V2 has over REST."""
    assert open_inference_status(error) == (code, text)


@pytest.mark.parametrize("tell", [prediction_status, management_status, open_inference_status])
def test_long_message_is_cut_before_its_class(tell):
    """A message is cut, but neither the request's id nor TorchServe's class after it."""
    error = errors.HandlerError("x" * 5000, 503)
    error.request_id = "mine"
    _, text = tell(error)

    message, _, kind = text.partition("\n")
    assert message == "x" * 4096 + " [request mine]"
    assert kind == ("" if tell is open_inference_status else "org.pytorch.serve.http.InternalServerException")


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
def test_long_message_fits_into_a_header(letter):
    _, text = open_inference_status(errors.HandlerError(letter * 9000, 503, 500))
    assert 4000 < len(quote(text)) <= 4096
    assert set(text) == {letter}


def test_long_refusal_is_cut():
    _, text = torchserve_status(RefusedRequest(errors.ServiceUnavailable("x" * 5000)))
    assert text == "x" * 4096 + "\nInternalServerException.()"
