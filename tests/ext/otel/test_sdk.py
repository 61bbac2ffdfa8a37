import threading

from modelserver.ext.otel.sdk import close_within_grace, resource


def test_service_is_named_by_the_environment(monkeypatch):
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert resource().attributes["service.name"] == "modelserver"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "digits")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=a")
    assert resource().attributes["service.name"] == "digits"
    assert resource().attributes["zone"] == "a"
    assert resource() == resource()
    assert hash(resource()) == hash(resource())


def test_the_end_is_bounded():
    """What takes longer goes on alone."""
    gate, ended = threading.Event(), threading.Event()

    def close():
        gate.wait(10)
        ended.set()

    close_within_grace(close, 0.05)
    assert not ended.is_set()
    gate.set()
    assert ended.wait(10)
