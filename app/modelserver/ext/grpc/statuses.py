"""From errors to statuses: TorchServe's services (reference 20), Open Inference (kserve reference 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from modelserver.errors import (
    BadRequest,
    InternalError,
    MethodNotAllowed,
    ModelFileExists,
    ModelNotFound,
    ModelServerError,
    ModelVersionNotFound,
    ServiceUnavailable,
)
from modelserver.ext.grpc.codes import StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable

# The status of a call: its code and the text for the client.
Ending: TypeAlias = tuple[StatusCode, str]
Tell: TypeAlias = "Callable[[ModelServerError], Ending]"


class Refused(ModelServerError):
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


def by_http(status: int) -> StatusCode:
    """The code that stands for an HTTP status (reference 20)."""
    other = StatusCode.FAILED_PRECONDITION if 400 <= status < 500 else StatusCode.INTERNAL
    return _BY_HTTP.get(status, other)


def http_class(code: StatusCode) -> int:
    """An HTTP status of the same meaning, for counters."""
    return _TO_HTTP.get(code, 500)


def torchserve_text(error: ModelServerError) -> str:
    """The message, and TorchServe's class on a separate line."""
    return f"{_told(error.message, error)}\n{_JAVA_PACKAGES.get(error.type, _JAVA_HTTP)}{error.type}"


def tell_prediction(error: ModelServerError) -> Ending:
    """As TorchServe, but a refusal that is 503 over REST (a full queue, say) is UNAVAILABLE: it may pass."""
    if isinstance(error, Refused) and error.reason.status == ServiceUnavailable.status:
        error = error.reason
    return tell_as_torchserve(error)


def tell_as_torchserve(error: ModelServerError) -> Ending:
    """A prediction that failed: by its HTTP status.

    One that no queue accepted: INTERNAL, whatever the reason, and sometimes the bare class.
    """
    if not isinstance(error, Refused):
        return by_http(error.status), torchserve_text(error)
    reason = error.reason
    if isinstance(reason, ModelNotFound | ModelVersionNotFound):
        return StatusCode.INTERNAL, torchserve_text(reason)
    own = "BadRequestException" if isinstance(reason, BadRequest) else "InternalServerException"
    return StatusCode.INTERNAL, f"{_told(reason.message, reason)}\n{own}.()"


def tell_management(error: ModelServerError) -> Ending:
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


def tell_open_inference(error: ModelServerError) -> Ending:
    """By the HTTP status of V2 over REST, with its text; UNAVAILABLE if clients may retry."""
    if isinstance(error, MethodNotAllowed):
        return StatusCode.PERMISSION_DENIED, error.message
    text = _told(error.kserve_message or error.message, error)
    return by_http(error.kserve_status or error.status), text


def _told(message: str, error: ModelServerError) -> str:
    """The message, shortened, and the request that it names."""
    if message.isascii():
        message = message[:_LONGEST]
    else:
        message = message.encode("utf-8", "replace")[: _LONGEST // 3].decode("utf-8", "ignore")
    return message if error.request_id is None else f"{message} [request {error.request_id}]"
