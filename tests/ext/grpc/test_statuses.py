"""Errors as endings of calls."""

from __future__ import annotations

from urllib.parse import quote

import grpc
import pytest

from modelserver.engine.pools.spec import no_worker
from modelserver.errors import (
    BadRequest,
    Conflict,
    DeadlineExceeded,
    DownloadFailed,
    HandlerError,
    InternalError,
    InvalidModel,
    InvalidModelVersion,
    MethodNotAllowed,
    ModelFileExists,
    ModelNotFound,
    ModelServerError,
    ModelVersionNotFound,
    PayloadTooLarge,
    ResponseTimeout,
    ServiceUnavailable,
    StartFailed,
    WorkerDied,
)
from modelserver.ext.grpc.statuses import (
    RefusedRequest,
    StatusCode,
    ToStatus,
    code_of_http,
    http_status,
    management_status,
    open_inference_status,
    prediction_status,
    torchserve_status,
)
from modelserver.surface.http.intake import IntakeFull

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


def test_codes_are_those_of_grpc() -> None:
    """Names and numbers are those that clients know."""
    assert {code.name: code.value for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


@pytest.mark.parametrize(("status", "code"), _TABLE.items())
def test_http_status_has_its_code(status: int, code: int) -> None:
    """The table of reference 20."""
    assert code_of_http(status) == code


@pytest.mark.parametrize("code", StatusCode)
def test_code_counts_as_success_or_whose_fault(code: StatusCode) -> None:
    """Each code counts as success, the client's fault or the server's."""
    like = http_status(code) // 100

    servers = {"UNKNOWN", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED", "DATA_LOSS"}
    assert like == (2 if code is StatusCode.OK else 5 if code.name in servers else 4)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ModelNotFound.named("m"),
            "Model not found: m\norg.pytorch.serve.archive.model.ModelNotFoundException",
        ),
        (
            ModelVersionNotFound.named("m", "2"),
            (
                "Model version: 2 does not exist for model: m\n"
                "org.pytorch.serve.archive.model.ModelVersionNotFoundException"
            ),
        ),
        (BadRequest("x"), "x\nBadRequestException.()"),
        (ServiceUnavailable("full"), "full\nInternalServerException.()"),
    ],
)
def test_refused_prediction_is_internal(error: ModelServerError, text: str) -> None:
    """Whatever the reason, it is INTERNAL, as a recording of TorchServe 0.12 has it."""
    assert torchserve_status(RefusedRequest(error)) == (StatusCode.INTERNAL, text)
    if error.status != 503:
        assert prediction_status(RefusedRequest(error)) == (StatusCode.INTERNAL, text)


@pytest.mark.parametrize("error", [ServiceUnavailable("full"), IntakeFull(1), no_worker("m")])
def test_refusals_that_clients_may_repeat(error: ModelServerError) -> None:
    """What is 503 over REST is UNAVAILABLE in all services, the code on which clients of gRPC retry."""
    code, text = prediction_status(RefusedRequest(error))

    assert code is StatusCode.UNAVAILABLE
    assert text == f"{error.message}\norg.pytorch.serve.http.ServiceUnavailableException"
    assert open_inference_status(error) == (StatusCode.UNAVAILABLE, error.message)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HandlerError("m", 503), StatusCode.UNAVAILABLE),
        (WorkerDied(), StatusCode.INTERNAL),
        (DeadlineExceeded("m"), StatusCode.DEADLINE_EXCEEDED),
        (PayloadTooLarge("m"), StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_failed_prediction_has_the_code_of_its_status(error: ModelServerError, code: StatusCode) -> None:
    """By the HTTP status, with the class on the second line."""
    result, text = prediction_status(error)

    assert result is code
    assert text == f"{error.message}\norg.pytorch.serve.http.{error.type}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFound("m"), StatusCode.NOT_FOUND),
        (BadRequest("m"), StatusCode.INVALID_ARGUMENT),
        (InvalidModel("m"), StatusCode.INVALID_ARGUMENT),
        (DownloadFailed("m"), StatusCode.INVALID_ARGUMENT),
        (StartFailed("m"), StatusCode.INTERNAL),
        (StartFailed("m", 507), StatusCode.INTERNAL),
        (InternalError("m"), StatusCode.INTERNAL),
        (MethodNotAllowed(), StatusCode.PERMISSION_DENIED),
        (Conflict("m"), StatusCode.UNKNOWN),
        (ModelFileExists("m"), StatusCode.INTERNAL),
        (InvalidModelVersion("m"), StatusCode.UNKNOWN),
    ],
)
def test_management_error_has_its_code(error: ModelServerError, code: StatusCode) -> None:
    """The table of reference 20; what TorchServe does not map is UNKNOWN, but has a text."""
    result, text = management_status(error)

    assert result is code
    assert text


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ModelNotFound.named("m"), StatusCode.NOT_FOUND, "Model with name m does not exist."),
        (BadRequest("b"), StatusCode.INVALID_ARGUMENT, "b"),
        (ServiceUnavailable("s"), StatusCode.UNAVAILABLE, "s"),
        (ResponseTimeout("t"), StatusCode.DEADLINE_EXCEEDED, "t"),
        (HandlerError("h", 503, 500), StatusCode.INTERNAL, "h"),
        (MethodNotAllowed(message="off"), StatusCode.PERMISSION_DENIED, "off"),
    ],
)
def test_open_inference_error_has_its_code(error: ModelServerError, code: StatusCode, text: str) -> None:
    """The code follows the status and the text that V2 has over REST."""
    assert open_inference_status(error) == (code, text)


@pytest.mark.parametrize("tell", [prediction_status, management_status, open_inference_status])
def test_long_message_is_cut_before_its_class(tell: ToStatus) -> None:
    """A message is cut, but neither the request's id nor TorchServe's class after it."""
    error = HandlerError("x" * 5000, 503)
    error.request_id = "mine"
    _, text = tell(error)

    message, _, kind = text.partition("\n")
    assert message == "x" * 4096 + " [request mine]"
    assert kind == ("" if tell is open_inference_status else "org.pytorch.serve.http.InternalServerException")


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
def test_long_message_fits_into_a_header(letter: str) -> None:
    """A message fits into a header, in which gRPC writes bytes that are not ASCII with three."""
    _, text = open_inference_status(HandlerError(letter * 9000, 503, 500))

    assert 4000 < len(quote(text)) <= 4096
    assert set(text) == {letter}


def test_long_refusal_is_cut() -> None:
    """Messages of requests that no queue accepted are cut, too."""
    _, text = torchserve_status(RefusedRequest(ServiceUnavailable("x" * 5000)))

    assert text == "x" * 4096 + "\nInternalServerException.()"
