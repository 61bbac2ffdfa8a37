"""What became of the rows of a request."""

from __future__ import annotations

import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import BODY, TENSORS, Answer, Row
from modelserver.errors import (
    DeadlineExceeded,
    HandlerError,
    InternalError,
    ModelServerError,
)
from modelserver.surface.inference.codec import contents_of, failure_of


def ended(*answers: tuple[Answer, bytes], kind: int = BODY) -> Request:
    """A request whose rows have these answers."""
    request = Request("id", [Row("id", 0, kind)] * len(answers), [b""] * len(answers), 0.0)
    request.deliver(0, list(answers))
    return request


def test_the_first_row_that_failed_is_named() -> None:
    """With the status and the type that the worker gives; one row alone needs no name."""
    failed = Answer(3, 400, failed=True, error_type="Own"), b"bad"
    failure = failure_of(ended((Answer(1), b"a"), failed, failed, kind=TENSORS), "row %d: ")
    alone = failure_of(ended(failed), "row %d: ")

    assert isinstance(failure, HandlerError)
    assert (str(failure), str(alone)) == ("row 1: bad", "bad")
    assert (failure.status, failure.kserve_status, failure.type) == (400, None, "Own")
    assert HandlerError.type == "InternalServerException"


def test_a_whole_body_that_failed_is_500_for_kserve() -> None:
    """What is 503 in TorchServe's protocol (design 9, "Statuses")."""
    failure = failure_of(ended((Answer(3, 503, failed=True), b"bad")))

    assert failure is not None
    assert (failure.status, failure.kserve_status) == (503, 500)


@pytest.mark.parametrize(
    ("error", "kind"), [(DeadlineExceeded("d"), DeadlineExceeded), (OSError("o"), InternalError)]
)
def test_errors_of_a_request_are_told(error: Exception, kind: type[ModelServerError]) -> None:
    """Those of the server as they are, strange ones as the server's fault."""
    request = Request("id", [Row("id", 0)], [b""], 0.0)
    request.fail(error)

    assert type(failure_of(request)) is kind


def test_a_request_that_failed_is_let_go() -> None:
    """At once, not when a collector comes by."""
    request = Request("id", [Row("id", 0)], [b""], 0.0)
    request.fail(DeadlineExceeded("d"))
    failure = failure_of(request)

    assert failure is not None
    assert failure.__traceback__ is None


def test_answers_come_in_order() -> None:
    """Of a request without a failure."""
    request = ended((Answer(1), b"a"), (Answer(1), b"b"))

    assert (failure_of(request), contents_of(request)) == (None, [b"a", b"b"])
