"""One family of errors: the class has status and type, the instance the message, and what a worker said.

    ModelServerError
      BadRequest 400            a request that cannot be understood
        InvalidModel 400        an archive or manifest that cannot be served
        DownloadFailed 400
      ModelNotFound 404         no such model, archive or URL
      ModelVersionNotFound 404
      ResourceNotFound 404      no such route
      InvalidModelVersion 403   removing the default version
      MethodNotAllowed 405
      RequestTimeout 408
      Conflict 409
        ModelFileExists         an archive of that name is in the model store
      PayloadTooLarge 413
      InternalError 500         what a worker or handler did wrong
        HandlerError            an answer of the handler's making, any status
        WorkerDied              the process ended with the request in it
        ResponseTimeout         the worker did not answer in time
        StartFailed             a worker could not load its model
      ServiceUnavailable 503
      DeadlineExceeded 504
      OutOfMemory 507
    ConfigError                 never leaves the start-up

The names clients see (``type``) are TorchServe's (reference 4.3).
"""

from __future__ import annotations

from typing import Protocol


class ModelServerError(Exception):
    """An error that a client is told about.

    ``status`` is the HTTP status, ``type`` the exception name TorchServe gives it. ``kserve_status`` is the
    status on V1 and V2 routes where that differs (design, section 9), and ``kserve_message`` what KServe says
    there.
    """

    status: int = 500
    kserve_status: int | None = None
    kserve_message: str | None = None
    type: str = "InternalServerException"
    request_id: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> dict[str, object]:
        """The error body of TorchServe's APIs."""
        return {"code": self.status, "type": self.type, "message": self.message}


class BadRequest(ModelServerError):
    """A request that cannot be understood."""

    status = 400
    type = "BadRequestException"


class InvalidModel(BadRequest):
    """An archive, manifest or model configuration that cannot be served."""

    type = "InvalidModelException"


class DownloadFailed(BadRequest):
    """A model URL could not be fetched."""

    type = "DownloadArchiveException"


class InvalidModelVersion(ModelServerError):
    """The default version cannot be removed while others exist."""

    status = 403
    type = "InvalidModelVersionException"


class ModelNotFound(ModelServerError):
    """No such model, or nothing to load at the given URL."""

    status = 404
    type = "ModelNotFoundException"

    @classmethod
    def named(cls, name: str) -> ModelNotFound:
        error = cls(f"Model not found: {name}")
        error.kserve_message = f"Model with name {name} does not exist."
        return error


class ModelVersionNotFound(ModelServerError):
    """The model exists, the version does not."""

    status = 404
    type = "ModelVersionNotFoundException"

    @classmethod
    def named(cls, name: str, version: str) -> ModelVersionNotFound:
        return cls(f"Model version: {version} does not exist for model: {name}")


class ResourceNotFound(ModelServerError):
    """No such route."""

    status = 404
    type = "ResourceNotFoundException"

    def __init__(
        self, message: str = "Requested resource is not found, please refer to API document."
    ) -> None:
        super().__init__(message)


class MethodNotAllowed(ModelServerError):
    """The route exists, the method does not."""

    status = 405
    type = "MethodNotAllowedException"

    def __init__(
        self, allow: str = "", message: str = "Requested method is not allowed, please refer to API document."
    ) -> None:
        super().__init__(message)
        if allow:
            self.headers = ((b"allow", allow.encode()),)


class RequestTimeout(ModelServerError):
    """The server gave up waiting for something it needs."""

    status = 408
    type = "RequestTimeoutException"


class Conflict(ModelServerError):
    """The name and version are taken."""

    status = 409
    type = "ConflictStatusException"


class ModelFileExists(Conflict):
    """An archive of that name is in the model store already."""


class PayloadTooLarge(ModelServerError):
    """The body exceeds ``max_request_size``."""

    status = 413
    type = "RequestEntityTooLargeException"


class InternalError(ModelServerError):
    """Something behind the API failed."""

    def __init__(self, message: str = "The server failed to answer; its log says why.") -> None:
        super().__init__(message)


class FailedRow(Protocol):
    """What a worker says of a row that failed, beside the message."""

    @property
    def status(self) -> int: ...

    @property
    def error_type(self) -> str: ...


class HandlerError(InternalError):
    """What a worker reports of a request: any status, the message is its own.

    ``request_id`` stands in the body where it is given.
    """

    def __init__(self, message: str, status: int, kserve_status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kserve_status = kserve_status

    @classmethod
    def of(cls, answer: FailedRow, content: bytes, *, whole: bool = False) -> HandlerError:
        """The error of a row; of a ``whole`` body the worker could not know that it came by a protocol of
        KServe's, where a handler that failed is 500.
        """
        kserve_status = 500 if whole and answer.status == 503 else None
        error = cls(content.decode("utf-8", "replace"), answer.status, kserve_status)
        error.type = answer.error_type
        return error


class WorkerDied(InternalError):
    """The worker process ended with the request in it."""

    def __init__(self, message: str = "Worker died.") -> None:
        super().__init__(message)


class ResponseTimeout(WorkerDied):
    """The worker did not answer within the response timeout and is being replaced."""

    kserve_status = 504


class StartFailed(InternalError):
    """A worker could not load its model; the message gives the cause. 507 if memory was the cause."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class ServiceUnavailable(ModelServerError):
    """The queue is full, or nobody serves the model right now."""

    status = 503
    type = "ServiceUnavailableException"
    headers = ((b"retry-after", b"1"),)


class DeadlineExceeded(ModelServerError):
    """The request's deadline passed before its answer was ready."""

    status = 504
    type = "RequestTimeoutException"


class OutOfMemory(InternalError):
    """A worker ran out of memory."""

    status = 507

    def __init__(self, message: str = "Worker died.") -> None:
        super().__init__(message)


class ConfigError(Exception):
    """A setting that stops the start; the message names key, value and what is allowed."""
