import json
from types import SimpleNamespace

import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import Answer, Row
from modelserver.ext.otel.language import language_call
from modelserver.surface.inference.routes import Route


def call_of(body=b"", url_path="v1/chat/completions", **fields):
    body = body or json.dumps({"model": "m/poet", "messages": [], **fields}).encode()
    route = Route("m", url_path=url_path, protocol="openai")
    watched = SimpleNamespace(target=SimpleNamespace(route=route), body=body)
    call = language_call(watched, Request("r", [Row("r", 0)], [b""], 0.0))
    assert call is not None
    return call


def test_answer_has_its_usage():
    """By OpenTelemetry's names, beside what the client asked for."""
    call = call_of(max_tokens=5, temperature=0.5)
    call.replied(b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}')

    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m/poet",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }


@pytest.mark.parametrize("fails", [False, True])
def test_stream_has_the_usage_that_its_handler_reports(fails):
    """One that fails has none."""
    call = call_of(stream=True)
    if not fails:
        counts = b'{"prompt_tokens": 7, "completion_tokens": 3}'
        call._request.deliver(0, [(Answer(0, parameters=counts), b"")])
    call.ended(0.25)

    assert call.attributes["gen_ai.request.stream"] is True
    assert call.attributes["gen_ai.response.time_to_first_chunk"] == 0.25
    assert call.attributes.get("gen_ai.usage.output_tokens") == (None if fails else 3)


@pytest.mark.parametrize("body", [b"{", b'{"model": 7}', b"\xff", b"[" * 100_000])
def test_body_that_cannot_be_read_has_the_model_that_it_reached(body):
    call = call_of(body, "v1/rerank")
    call.replied(body)

    assert call.attributes == {"gen_ai.operation.name": "rerank", "gen_ai.request.model": "m"}


def test_other_requests_have_none():
    watched = SimpleNamespace(target=SimpleNamespace(route=Route("m")), body=b"")
    assert language_call(watched, Request("r", [Row("r", 0)], [b""], 0.0)) is None
