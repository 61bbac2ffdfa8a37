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
def test_each_says_status_and_type(error):
    assert 400 <= error.status < 600
    assert error.type.endswith("Exception")


def test_error_names_what_is_missing_and_what_there_is():
    """The nearest first, whatever the case of its letters, a few of many, and that there is nothing."""
    lost = ModelNotFound.named("m")

    assert (lost.message, lost.kserve_message) == ("Model not found: m", "Model with name m does not exist.")
    assert str(ModelVersionNotFound.named("m", "2")) == "Model version: 2 does not exist for model: m"

    many = [f"model-{number}" for number in range(8)] + ["resnet50", "iris-v2", "Iris"]

    assert str(ModelNotFound.named("Iris", ["iris"])) == "Model not found: Iris. There is: iris"
    assert ModelNotFound.named("a", []).kserve_message == "Model with name a does not exist. There is none"
    output = str(ModelNotFound.named("iris", many))
    assert output.startswith("Model not found: iris. There are: Iris, iris-v2, resnet50, model-")
    assert output.endswith(" and 6 more")
    version = ModelVersionNotFound.named("m", "1", {"1.0": 1, "2.0": 2})
    assert str(version) == "Model version: 1 does not exist for model: m. There are: 1.0, 2.0"


def test_long_names_and_many_cost_little():
    """A part of each name is compared, of a part of them, as the event loop waits meanwhile."""
    others = [f"{number}{'b' * 250}" for number in range(1000)]

    output = str(ModelNotFound.named("b" * 250 + "999", others))

    assert output.endswith(" and 995 more")
    assert f"999{'b' * 250}" not in output


def test_headers_go_with_an_error():
    assert MethodNotAllowed("GET, POST").headers == ((b"allow", b"GET, POST"),)
    assert MethodNotAllowed().headers == ()
    assert ServiceUnavailable("later").headers == ((b"retry-after", b"1"),)


def test_a_handlers_status_is_its_own():
    assert (HandlerError("x", 418).status, HandlerError("y", 503, 500).kserve_status) == (418, 500)
    assert (HandlerError.status, ResponseTimeout().status, ResponseTimeout().kserve_status) == (500, 500, 504)
