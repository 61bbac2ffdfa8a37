"""The family of errors."""

from __future__ import annotations

import pytest

from modelserver import errors
from modelserver.errors import (
    HandlerError,
    MethodNotAllowed,
    ModelNotFound,
    ModelServerError,
    ModelVersionNotFound,
    ResponseTimeout,
    ServiceUnavailable,
)

FAMILY = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, ModelServerError) and error is not ModelServerError
]


@pytest.mark.parametrize("error", FAMILY)
def test_each_says_status_and_type(error: type[ModelServerError]) -> None:
    """A status of clients' or servers' faults, and a type that TorchServe has."""
    assert 400 <= error.status < 600
    assert error.type.endswith("Exception")


def test_what_is_not_found_is_named() -> None:
    """A model in the words of either family, a version with its model."""
    model = ModelNotFound.named("m")

    assert (model.message, model.kserve_message) == (
        "Model not found: m",
        "Model with name m does not exist.",
    )
    assert str(ModelVersionNotFound.named("m", "2")) == "Model version: 2 does not exist for model: m"


def test_headers_go_with_an_error() -> None:
    """What is allowed, and when to come again."""
    assert MethodNotAllowed("GET, POST").headers == ((b"allow", b"GET, POST"),)
    assert MethodNotAllowed().headers == ()
    assert ServiceUnavailable("later").headers == ((b"retry-after", b"1"),)


def test_a_handlers_status_is_its_own() -> None:
    """It changes neither other errors nor its class."""
    assert (HandlerError("x", 418).status, HandlerError("y", 503, 500).kserve_status) == (418, 500)
    assert (HandlerError.status, ResponseTimeout().status, ResponseTimeout().kserve_status) == (500, 500, 504)
