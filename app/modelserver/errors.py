"""The errors that clients get, each class with its status and type, and those that stop the start.

The names that clients see (``type``) are TorchServe's (reference 4.3).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice, pairwise
from typing import Final, Protocol

# Names in a message, names that are compared for it, and characters of each: the event loop waits meanwhile.
_NAMED: Final = 5
_COMPARED: Final = 50
_CHARACTERS: Final = 64


class ModelServerError(Exception):
    """An error that is sent to the client.

    ``status`` is the HTTP status, ``type`` TorchServe's name of the exception. ``kserve_status`` is the
    status on V1 and V2 routes if it differs (design, section 9), ``kserve_message`` KServe's message there;
    ``openai_status``, ``openai_code`` and ``openai_message`` are those of OpenAI's API, where they differ.
    A ``request_id`` becomes part of what the client is told; ``logged_id`` is the request's in any case, if
    it had reached a model, over gRPC. ``cause`` is what operators are told: the class of a handler's
    exception, its message and place. ``is_handlers``: a worker reported it, and not this server.
    """

    status: int = 500
    kserve_status: int | None = None
    kserve_message: str | None = None
    openai_status: int | None = None
    openai_code: str | None = None
    openai_message: str | None = None
    type: str = "InternalServerException"
    request_id: str | None = None
    logged_id: str = ""
    cause: str = ""
    is_handlers: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def status_in(self, form: str) -> int:
        """The status for clients of this form (:func:`modelserver.surface.http.answers.form_of`)."""
        if form == "openai" and self.openai_status is not None:
            return self.openai_status
        return (self.kserve_status or self.status) if form else self.status


class BadRequest(ModelServerError):
    """An invalid request."""

    status = 400
    type = "BadRequestException"


class InvalidModel(BadRequest):
    """An archive, manifest or model configuration that cannot be served."""

    type = "InvalidModelException"


class DownloadFailed(BadRequest):
    """A model URL could not be downloaded."""

    type = "DownloadArchiveException"

    @classmethod
    def of(cls, url: str, reason: str = "") -> DownloadFailed:
        """TorchServe's error, with the reason if known."""
        text = f"Failed to download archive from: {url}"
        return cls(f"{text}: {reason}" if reason else text)


class InvalidModelVersion(ModelServerError):
    """The default version cannot be removed while others exist."""

    status = 403
    type = "InvalidModelVersionException"


class ModelNotFound(ModelServerError):
    """No such model, or nothing to load at the given URL."""

    status = 404
    openai_code = "model_not_found"
    type = "ModelNotFoundException"

    @classmethod
    def named(cls, name: str, others: Collection[str] | None = None) -> ModelNotFound:
        """``others`` are the models that there are, None if the client is not told."""
        error = cls(f"Model not found: {name}{_instead_of(name, others)}")
        error.kserve_message = f"Model with name {name} does not exist{_instead_of(name, others) or '.'}"
        return error


class ModelVersionNotFound(ModelServerError):
    """The model exists, the version does not."""

    status = 404
    openai_code = "model_not_found"
    type = "ModelVersionNotFoundException"

    @classmethod
    def named(cls, name: str, version: str, others: Collection[str] | None = None) -> ModelVersionNotFound:
        """``others`` are the versions that there are, None if the client is not told."""
        return cls(f"Model version: {version} does not exist for model: {name}{_instead_of(version, others)}")


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


class Conflict(ModelServerError):
    """The name and version are already in use."""

    status = 409
    type = "ConflictStatusException"


class ModelFileExists(Conflict):
    """The model store already has an archive of that name."""


class PayloadTooLarge(ModelServerError):
    """The body exceeds ``max_request_size``."""

    status = 413
    type = "RequestEntityTooLargeException"

    @classmethod
    def of(cls, limit: int) -> PayloadTooLarge:
        """For a body over the limit, in bytes."""
        return cls(f"The request body is larger than max_request_size={limit} bytes.")


class InternalError(ModelServerError):
    """The server, a worker or a handler failed."""

    def __init__(self, message: str = "The server failed to answer; its log says why.") -> None:
        super().__init__(message)


class FailedRow(Protocol):
    """What a worker reports about a failed row besides the message."""

    @property
    def status(self) -> int: ...

    @property
    def error_type(self) -> str: ...

    @property
    def cause(self) -> str: ...


class HandlerError(InternalError):
    """A failure that a worker reports, with its message and any status."""

    is_handlers = True

    def __init__(self, message: str, status: int, kserve_status: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kserve_status = status, kserve_status
        # On the paths of OpenAI's API, nothing but a model can be missing.
        self.openai_code = "model_not_found" if status == 404 else None

    @classmethod
    def of(cls, answer: FailedRow, content: bytes, *, whole: bool = False) -> HandlerError:
        """The error of a row. ``whole``: it is a whole body, whose protocol the worker does not know; on
        KServe's routes a failed handler is a 500.
        """
        kserve_status = 500 if whole and answer.status == 503 else None
        error = cls(content.decode("utf-8", "replace"), answer.status, kserve_status)
        error.type, error.cause = answer.error_type, answer.cause
        return error


class WorkerDied(InternalError):
    """The worker process ended while it had the request."""

    def __init__(self, message: str = "Worker died.") -> None:
        super().__init__(message)


class GpuFailed(WorkerDied):
    """The worker process cannot use its GPU any more and is being replaced."""


class ResponseTimeout(WorkerDied):
    """The worker did not answer within the response timeout and is being replaced."""

    kserve_status = 504


class StartFailed(InternalError):
    """A worker could not load its model; the message has the cause.

    507 if out of memory, 400 if the model's packages cannot be installed.
    """

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status
        if status == BadRequest.status:
            self.type = "ModelException"


class ServiceUnavailable(ModelServerError):
    """The queue is full, or no worker serves the model right now."""

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


def _instead_of(name: str, others: Collection[str] | None) -> str:
    """The end of a message: what there is, the nearest first; empty if the client is not told."""
    if others is None:
        return ""
    if not others:
        return ". There is none"
    traits = _traits(name)

    def distance(other: str) -> float:
        its = _traits(other)
        return len(traits ^ its) / (len(traits | its) or 1)

    nearest = sorted(islice(others, _COMPARED), key=distance)[:_NAMED]
    more = len(others) - len(nearest)
    listed = ", ".join(nearest) + (f" and {more} more" if more else "")
    return f". There {'is' if len(others) == 1 else 'are'}: {listed}"


def _traits(name: str) -> set[str]:
    """Its characters and pairs of neighbours, which are quick to compare: clients can cause many errors."""
    text = name[:_CHARACTERS].casefold()
    return {*text, *map("".join, pairwise(text))}


class ConfigError(Exception):
    """An invalid setting that stops the start; the message has key, value and what is allowed."""
