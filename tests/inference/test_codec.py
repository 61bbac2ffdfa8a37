"""Requests as rows of work, whatever protocol they came by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from modelserver.batching.queue import AtOnce
from modelserver.batching.request import Request
from modelserver.batching.sequences import SequencedRequest
from modelserver.errors import (
    DeadlineExceeded,
    HandlerError,
    InternalError,
    ModelServerError,
)
from modelserver.http.connection_exchange import ConnectionExchange
from modelserver.http.exchange import Target
from modelserver.inference.codec import NO_HEADERS, Asked, Codec, contents_of, failure_of
from modelserver.inference.routes import Route
from modelserver.inference.v1 import split
from modelserver.tensors.limits import RequestLimits
from modelserver.wire.messages import BODY, FIELDS, TENSORS, Answer, Row, SequenceHeaders


def model(timeout: float | None = None, sequences: SequenceHeaders | None = None) -> Any:
    """A model with a deadline of its own."""
    return SimpleNamespace(sequence_headers=sequences, options=SimpleNamespace(request_timeout=timeout))


@pytest.mark.parametrize(
    ("own", "call", "of_model", "found"),
    [(None, None, None, None), (3, None, None, 13), (3, 2, None, 12), (3, 2, 1, 11), (None, None, 4, 14)],
)
def test_the_first_deadline_counts(
    own: float | None, call: float | None, of_model: float | None, found: float | None
) -> None:
    """That of the request's own parameter, the client's, or the model's."""
    asked = Asked([b""], timeout=own)

    assert asked.make_request(model(of_model), "id", NO_HEADERS, 10.0, call, False).deadline == found


def test_predictions_share_batches_with_bare_instances() -> None:
    """Over gRPC too; parameters, or that they are explanations, keep them apart."""
    bodies = Asked([b"a"]), Asked([b"a"], FIELDS), split(b'{"instances":[1]}')
    keys = {each.make_request(model(), "id", NO_HEADERS, 0.0, None, False).key for each in bodies}
    other = split(b'{"instances":[1],"parameters":{}}').make_request(
        model(), "id", NO_HEADERS, 0.0, None, False
    )
    explained = Asked([b"a"]).make_request(model(), "id", NO_HEADERS, 0.0, None, True)

    assert len(keys) == 1
    assert other.key not in keys
    assert isinstance(explained.key, AtOnce)


def test_what_a_row_says() -> None:
    """Whose it is, how large, and what the route and the client say of it."""
    headers = msgspec.msgpack.encode([[b"a", b"b"]])
    connection: Any = None
    target = Target("/models/m/invoke", b"x=1", "/models/m/invoke?x=1", Route("m", query=True))
    exchange = ConnectionExchange(
        connection, target, b"POST", "1.1", [(b"content-type", b"text/plain")], True
    )
    exchange.body = b"abc"
    asked = Codec(RequestLimits(), connection).read(exchange, model())
    (row,) = asked.make_request(model(), "id", headers, 0.0, None, False).rows

    assert row == Row("id", 3, BODY, "text/plain", msgspec.Raw(headers), [("x", "1")])


def test_a_request_may_say_its_sequence_itself() -> None:
    """As if its headers did."""
    asked = Asked([b""], sequence=[(b"ts_request_sequence_id", b"s")])
    request = asked.make_request(model(sequences=SequenceHeaders()), "id", NO_HEADERS, 0.0, None, False)

    assert isinstance(request, SequencedRequest)
    assert request.mark.id == "s"


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
