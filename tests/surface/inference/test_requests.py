"""Requests as rows of work, whatever protocol they came by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from modelserver.engine.batching.queue import ImmediateKey
from modelserver.engine.batching.request import SequencedRequest
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.wire.messages import BODY, FIELDS, Row, SequenceHeaders
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.codec import Codec, Parsed
from modelserver.surface.inference.requests import NO_HEADERS, home_of_sequence, make_request
from modelserver.surface.inference.routes import Route
from modelserver.surface.inference.v1 import split


def model(timeout: float | None = None, sequences: SequenceHeaders | None = None) -> Any:
    """A model with a deadline of its own."""
    return SimpleNamespace(
        sequence_headers=sequences,
        options=SimpleNamespace(request_timeout=timeout),
        pool=SimpleNamespace(dispatch=SimpleNamespace(takes_scopes=False)),
    )


@pytest.mark.parametrize(
    ("own", "call", "of_model", "result"),
    [(None, None, None, None), (3, None, None, 13), (3, 2, None, 12), (3, 2, 1, 11), (None, None, 4, 14)],
)
def test_the_first_deadline_counts(
    own: float | None, call: float | None, of_model: float | None, result: float | None
) -> None:
    """That of the request's own parameter, the client's, or the model's."""
    parsed = Parsed([b""], timeout=own)

    assert make_request(parsed, model(of_model), "id", NO_HEADERS, 10.0, call, False).deadline == result


@pytest.mark.parametrize(
    ("headers", "parameter", "expected"),
    [
        ([], (), "chosen"),
        ([(b"TS_request_sequence_id", b" a ")], (), "home of a"),
        ([(b"ts_request_sequence_id", b"a")], [(b"ts_request_sequence_id", b"b")], "home of b"),
        ([(b"ts_request_sequence_id", b"")], (), "chosen"),
    ],
)
def test_a_request_goes_where_its_sequence_is(headers: Any, parameter: Any, expected: str) -> None:
    """By the header, or by the parameter of its protocol, which counts more."""
    traffic: Any = SimpleNamespace(home=lambda name, _: f"home of {name}")
    chosen = model(sequences=SequenceHeaders())
    parsed = Parsed([b""], sequence=parameter)
    result: Any = home_of_sequence(chosen, traffic, parsed, msgspec.msgpack.encode(headers))

    assert result == expected if expected != "chosen" else result is chosen


def test_predictions_share_batches_with_bare_instances() -> None:
    """They do so over gRPC too; parameters, and explanations, keep them apart."""
    bodies = Parsed([b"a"]), Parsed([b"a"], FIELDS), split(b'{"instances":[1]}')
    keys = {make_request(each, model(), "id", NO_HEADERS, 0.0, None, False).key for each in bodies}
    other = make_request(
        split(b'{"instances":[1],"parameters":{}}'), model(), "id", NO_HEADERS, 0.0, None, False
    )
    explained = make_request(Parsed([b"a"]), model(), "id", NO_HEADERS, 0.0, None, True)

    assert len(keys) == 1
    assert other.key not in keys
    assert isinstance(explained.key, ImmediateKey)


def test_what_a_row_says() -> None:
    """Whose it is, how large, and what the route and the client say of it."""
    headers = msgspec.msgpack.encode([[b"a", b"b"]])
    connection: Any = None
    target = Target("/models/m/invoke", b"x=1", "/models/m/invoke?x=1", Route("m", query=True))
    exchange = ConnectionExchange(
        connection, target, b"POST", "1.1", [(b"content-type", b"text/plain")], True
    )
    exchange.body = b"abc"
    parsed = Codec(RequestLimits(), connection).read(exchange, model())
    (row,) = make_request(parsed, model(), "id", headers, 0.0, None, False).rows

    assert row == Row("id", 3, BODY, "text/plain", msgspec.Raw(headers), [("x", "1")])


def test_a_request_may_say_its_sequence_itself() -> None:
    """This has the effect of the headers."""
    parsed = Parsed([b""], sequence=[(b"ts_request_sequence_id", b"s")])
    request = make_request(parsed, model(sequences=SequenceHeaders()), "id", NO_HEADERS, 0.0, None, False)

    assert isinstance(request, SequencedRequest)
    assert request.mark.id == "s"
