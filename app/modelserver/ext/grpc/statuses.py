"""From errors to statuses: TorchServe's services (reference 20), Open Inference (kserve reference 6)."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from modelserver.errors import (
    BadRequest,
    InternalError,
    MethodNotAllowed,
    ModelFileExists,
    ModelNotFound,
    ModelServerError,
    ServiceUnavailable,
)


class StatusCode(IntEnum):
    """How a call ends."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# The status of a call: its code and the text for the client.
CallStatus: TypeAlias = tuple[StatusCode, str]
ToStatus: TypeAlias = "Callable[[ModelServerError], CallStatus]"


class RefusedRequest(ModelServerError):
    """A request that no queue accepted: the model or version does not exist, or is not served."""

    def __init__(self, reason: ModelServerError) -> None:
        super().__init__(reason.message)
        self.reason = reason


FAILED = InternalError().message
# Bytes of a message in a header, where what is not ASCII takes three for one; clients limit those to 8 KiB.
_LONGEST = 4096
API_DISABLED = "Model API disabled"

_BY_HTTP = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.ABORTED,
    413: StatusCode.RESOURCE_EXHAUSTED,
    416: StatusCode.OUT_OF_RANGE,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}

# The reverse, for metrics by HTTP status class; codes that are not listed count as 500.
_TO_HTTP = {code: status for status, code in _BY_HTTP.items()} | {
    StatusCode.OK: 200,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.ALREADY_EXISTS: 409,
}

# The packages of TorchServe's Java classes, which its clients see after the message.
_JAVA_PACKAGES = {
    "ModelNotFoundException": "org.pytorch.serve.archive.model.",
    "ModelVersionNotFoundException": "org.pytorch.serve.archive.model.",
    "InvalidModelException": "org.pytorch.serve.archive.model.",
    "DownloadArchiveException": "org.pytorch.serve.archive.",
}
_JAVA_HTTP = "org.pytorch.serve.http."


def code_of_http(status: int) -> StatusCode:
    """The code that stands for an HTTP status (reference 20)."""
    other = StatusCode.FAILED_PRECONDITION if 400 <= status < 500 else StatusCode.INTERNAL
    return _BY_HTTP.get(status, other)


def http_status(code: StatusCode) -> int:
    """An HTTP status of the same meaning, for counters."""
    return _TO_HTTP.get(code, 500)


def torchserve_text(error: ModelServerError) -> str:
    """The message, and TorchServe's class on a separate line."""
    return f"{_shortened(error.message, error)}\n{_JAVA_PACKAGES.get(error.type, _JAVA_HTTP)}{error.type}"


def prediction_status(error: ModelServerError) -> CallStatus:
    """Maps errors as TorchServe, except that a refusal with 503 over REST (full queue) is UNAVAILABLE."""
    if isinstance(error, RefusedRequest) and error.reason.status == ServiceUnavailable.status:
        error = error.reason
    return torchserve_status(error)


def torchserve_status(error: ModelServerError) -> CallStatus:
    """A prediction that failed: by its HTTP status.

    One that no queue accepted: INTERNAL, whatever the reason, and sometimes the bare class.
    """
    if not isinstance(error, RefusedRequest):
        return code_of_http(error.status), torchserve_text(error)
    reason = error.reason
    if reason.status == ModelNotFound.status:
        return StatusCode.INTERNAL, torchserve_text(reason)
    own = "BadRequestException" if isinstance(reason, BadRequest) else "InternalServerException"
    return StatusCode.INTERNAL, f"{_shortened(reason.message, reason)}\n{own}.()"


def management_status(error: ModelServerError) -> CallStatus:
    """The management service, as in TorchServe.

    An existing version and the removal of a default one are UNKNOWN; an existing file is INTERNAL.
    """
    if isinstance(error, MethodNotAllowed):
        return StatusCode.PERMISSION_DENIED, API_DISABLED
    if isinstance(error, ModelFileExists):
        return StatusCode.INTERNAL, torchserve_text(InternalError(error.message))
    if error.status in (403, 409):
        code = StatusCode.UNKNOWN
    elif error.status >= 500:
        code = StatusCode.INTERNAL
    else:
        code = StatusCode.NOT_FOUND if error.status == 404 else StatusCode.INVALID_ARGUMENT
    return code, torchserve_text(error)


def open_inference_status(error: ModelServerError) -> CallStatus:
    """By the HTTP status of V2 over REST, with its text; UNAVAILABLE if clients may retry."""
    if isinstance(error, MethodNotAllowed):
        return StatusCode.PERMISSION_DENIED, error.message
    text = _shortened(error.kserve_message or error.message, error)
    return code_of_http(error.kserve_status or error.status), text


def _shortened(message: str, error: ModelServerError) -> str:
    """The message, shortened, and the request that it names."""
    if message.isascii():
        message = message[:_LONGEST]
    else:
        message = message.encode("utf-8", "replace")[: _LONGEST // 3].decode("utf-8", "ignore")
    return message if error.request_id is None else f"{message} [request {error.request_id}]"
