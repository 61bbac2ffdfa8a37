from types import SimpleNamespace

import msgspec
import pytest

from modelserver.engine.batching.queue import ImmediateKey
from modelserver.engine.batching.request import SequencedRequest
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.wire.messages import BODY, FIELDS, Row, SequenceHeaders
from modelserver.models.options.resolve import ModelOptions
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.codec import Codec, Parsed
from modelserver.surface.inference.requests import home_of_sequence, make_request
from modelserver.surface.inference.routes import Route
from modelserver.surface.inference.v1 import split


def model(timeout: float | None = None, sequences: SequenceHeaders | None = None):
    return SimpleNamespace(
        sequence_headers=sequences,
        options=ModelOptions(request_timeout=timeout),
        pool=SimpleNamespace(dispatch=SimpleNamespace(takes_scopes=False)),
    )


def made(parsed, of_model=None, *, headers: bytes = b"\x90", call=None, explain: bool = False):
    """The request, which came at 10 seconds."""
    return make_request(parsed, of_model or model(), "id", headers, 10.0, call, explain)


@pytest.mark.parametrize(
    ("own", "call", "of_model", "result"),
    [(None, None, None, None), (3, None, None, 13), (3, 2, None, 12), (3, 2, 1, 11), (None, None, 4, 14)],
)
def test_the_first_deadline_counts(own, call, of_model, result):
    assert made(Parsed([b""], timeout=own), model(of_model), call=call).deadline == result


@pytest.mark.parametrize(
    ("headers", "parameter", "expected"),
    [
        ([], (), "chosen"),
        ([(b"TS_request_sequence_id", b" a ")], (), "home of a"),
        ([(b"ts_request_sequence_id", b"a")], [(b"ts_request_sequence_id", b"b")], "home of b"),
        ([(b"ts_request_sequence_id", b"")], (), "chosen"),
    ],
)
def test_a_request_goes_where_its_sequence_is(headers, parameter, expected):
    traffic = SimpleNamespace(home=lambda name, _: f"home of {name}")
    chosen = model(sequences=SequenceHeaders())
    parsed = Parsed([b""], sequence=parameter)
    result = home_of_sequence(chosen, traffic, parsed, msgspec.msgpack.encode(headers))

    assert result == expected if expected != "chosen" else result is chosen


def test_predictions_share_batches_with_bare_instances():
    bodies = Parsed([b"a"]), Parsed([b"a"], FIELDS), split(b'{"instances":[1]}')
    keys = {made(each).key for each in bodies}

    assert len(keys) == 1
    assert made(split(b'{"instances":[1],"parameters":{}}')).key not in keys
    assert isinstance(made(Parsed([b"a"]), explain=True).key, ImmediateKey)


def test_what_a_row_says():
    headers = msgspec.msgpack.encode([[b"a", b"b"]])
    connection = None
    target = Target("/models/m/invoke", b"x=1", "/models/m/invoke?x=1", Route("m", query=True))
    exchange = ConnectionExchange(
        connection, target, b"POST", "1.1", [(b"content-type", b"text/plain")], True
    )
    exchange.body = b"abc"
    parsed = Codec(RequestLimits(), connection).read(exchange, model())
    (row,) = made(parsed, headers=headers).rows

    assert row == Row("id", 3, BODY, "text/plain", msgspec.Raw(headers), [("x", "1")])


def test_a_request_may_say_its_sequence_itself():
    parsed = Parsed([b""], sequence=[(b"ts_request_sequence_id", b"s")])
    request = made(parsed, model(sequences=SequenceHeaders()))

    assert isinstance(request, SequencedRequest)
    assert request.mark.id == "s"
