from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.wire.messages import BODY
from modelserver.errors import BadRequest
from modelserver.surface.inference.codec import Codec, Parsed
from modelserver.surface.inference.routes import Route
from modelserver.surface.inference.v1 import V1

ANY = None


@pytest.mark.parametrize(
    ("route", "query"),
    [(Route("m", url_path="more"), None), (Route("m", url_path="more", query=True), [("a", "1")])],
)
def test_body_is_one_row(route, query):
    target = SimpleNamespace(route=route, query=b"a=1")
    exchange = SimpleNamespace(body=b"body", content_type="text/plain", target=target)
    dispatch = SimpleNamespace(takes_scopes=False)
    model = SimpleNamespace(pool=SimpleNamespace(dispatch=dispatch))
    parsed = Codec(RequestLimits(), ANY).read(exchange, model)

    assert (parsed.bodies, parsed.kind, parsed.content_type) == ([b"body"], BODY, "text/plain")
    assert (parsed.query, parsed.url_path) == (query, "more")
    assert not parsed.joins


@pytest.mark.parametrize(
    ("codec", "batches", "batch"), [(Codec, True, None), (V1, True, "b"), (V1, False, None)]
)
def test_error_names_the_batch_where_the_protocol_does(codec, batches, batch):
    failures: list[tuple[Any, ...]] = []
    exchange = SimpleNamespace(
        target=SimpleNamespace(route=Route("m", protocol="v1")),
        fail=lambda error, *, form, extra, batch_id: failures.append((error, form, extra, batch_id)),
    )
    model = SimpleNamespace(batches=batches)
    error = BadRequest("no")
    codec(RequestLimits(), ANY).fail(exchange, error, model, "b", b"x: y\r\n")

    assert failures == [(error, "kserve", b"x: y\r\n", batch)]


async def test_protocol_that_is_never_heavy_reads_each_body_alike():
    """Compressed bodies, which are inflated off the event loop, too."""

    class Lines(Codec):
        def read(self, exchange, model):
            return Parsed(exchange.body.split(), key=b"lines")

    parsed = await Lines(RequestLimits(), ANY).read_off_loop(SimpleNamespace(body=b"a b"), ANY)
    assert (parsed.bodies, parsed.key) == ([b"a", b"b"], b"lines")
