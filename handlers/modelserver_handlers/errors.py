"""Errors that handlers raise deliberately, and how they are shown."""

from __future__ import annotations


class PredictionException(Exception):
    """Fails the whole batch with ``message`` and the HTTP status ``error_code`` (reference 13.1)."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message, error_code)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


class ModelLoadError(RuntimeError):
    """The model cannot be loaded from its archive; retrying cannot help."""


class GpuNotUsable(ModelLoadError):
    """The GPU that was assigned cannot be used. It may come back: loading is tried again."""


class LoadAgain(RuntimeError):
    """This process is of no use any more: the model is loaded in another one, which has ``variables``."""

    def __init__(self, message: str, variables: dict[str, str]) -> None:
        super().__init__(message)
        self.variables = variables


class WorkerUnusable(RuntimeError):
    """This process cannot answer any more, for the reason in the message. Another one takes its place.

    For handlers whose worker runs an event loop: requests of which nothing was sent are answered by others.
    """


class BadInput(ValueError):
    """An input that cannot be used; the message says why, in words for the client."""


def first_line(error: BaseException) -> str:
    """The first line of its message, else its class."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def text_of(error: BaseException) -> str:
    """An exception's text, empty if it cannot be converted."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the exception is the user's own
        return ""
