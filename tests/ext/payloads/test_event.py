import json
import socket

from modelserver.ext.payloads.event import HIDDEN, REQUEST, Event, Origin
from modelserver.models.settings.settings import Settings


def event(**fields):
    fields_of_all = {
        "kind": REQUEST,
        "id": "1",
        "happened": 1.5,
        "content_type": "application/json",
        "body": b"{}",
    }
    return Event(**{**fields_of_all, **fields})  # type: ignore[arg-type]  # of the test's making


def test_event_has_the_attributes():
    """Each attribute of the agent is there, under its name (kserve reference 10.2)."""
    settings = Settings(
        payload_log_source="pod-1",
        payload_log_inference_service="digits",
        payload_log_namespace="research",
        payload_log_component="predictor",
        payload_log_endpoint="default",
        payload_log_headers="X-Request-Id",
        payload_log_annotations="team=vision, cost=0%",
    )
    headers = [(b"x-request-id", b"a"), (b"X-REQUEST-ID", b"b"), (b"X-Other", b"c")]

    heads = Origin.of(settings).heads(event(headers=headers, about={"modelname": "m"}), 61.25)

    assert heads == {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-type": "org.kubeflow.serving.inference.request",
        "ce-source": "pod-1",
        "ce-time": "1970-01-01T00:00:01.500000Z",
        "ce-recordedtime": "1970-01-01T00:01:01.250000Z",
        "ce-inferenceservicename": "digits",
        "ce-namespace": "research",
        "ce-component": "predictor",
        "ce-endpoint": "default",
        "ce-modelname": "m",
        "ce-metadata": '{"X-Request-Id":["a","b"]}',
        "ce-annotations": '{"team":"vision","cost":"0\\u0025"}',
        "content-type": "application/json",
    }

    heads = Origin.of(Settings()).heads(event(content_type=""), 2.0)

    assert heads["ce-source"] == socket.gethostname()
    assert heads["ce-metadata"] == "{}"
    assert "ce-namespace" not in heads
    assert "ce-annotations" not in heads
    assert "content-type" not in heads


def test_headers_hide_credentials_and_begin_no_others():
    """A value that authenticates somebody is not told, whatever the header is called. What a client says
    cannot begin another header, and has only characters that headers have.
    """
    headers = [(b"x-forwarded", b"Bearer abc"), (b"x-forwarded", b" basic dTpw"), (b"x-forwarded", b"bearer")]

    heads = Origin("s", copied=frozenset({"x-forwarded"})).heads(event(headers=headers), 2.0)

    assert json.loads(heads["ce-metadata"]) == {"X-Forwarded": [HIDDEN, HIDDEN, "bearer"]}

    headers = [(b"x-a", b"\xe9\n%")]
    heads = Origin("s", copied=frozenset({"x-a"})).heads(
        event(headers=headers, content_type="text/plain\r\nce-id: 2", about={"modelname": "mö%"}), 2.0
    )

    assert heads["content-type"] == "text/plain%0D%0Ace-id: 2"
    assert heads["ce-modelname"] == "m%C3%B6%25"
    assert heads["ce-metadata"] == '{"X-A":["\\u00e9\\n\\u0025"]}'
    assert all(value.isascii() and value.isprintable() for value in heads.values())
