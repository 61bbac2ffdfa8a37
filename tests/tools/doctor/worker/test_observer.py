import gc
import socket
import sys

import msgspec
import pytest

from modelserver.tools.doctor.probing import Called, Report, Reported, SourceLine
from modelserver.tools.doctor.worker.observer import Observer, base_of
from modelserver_handlers.text_handler import TextHandler

# Imports of less than a millisecond are not reported.
_SOURCE = """import time; time.sleep(0.002)
class Observed:
    def initialize(self, context):
        self.ready = True

    def handle(self, data, context):
        if data == ["bad"]:
            raise ValueError("a bad row")
        return "no list" if not data else [self.ready for row in data]


async def waits(data, context):
    return data
"""


@pytest.fixture
def observer(tmp_path, monkeypatch):
    """An observer, and the other end of its reports; this process stays as it is."""
    (tmp_path / "observed_handler.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    for module, name in ((sys, "addaudithook"), (gc, "freeze"), (gc, "collect")):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr("threading.Thread.start", None)
    reference, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with reference, ours:
        yield Observer(ours), reference
    sys.modules.pop("observed_handler", None)


def received(reports):
    return msgspec.msgpack.decode(reports.recv(1 << 20), type=Report)


def test_loading_and_calls_are_reported(observer, tmp_path):
    loads, reports = observer
    handler = loads.load_handler("observed_handler.py:Observed", tmp_path)
    handler.initialize(None)
    loaded = received(reports)

    assert isinstance(loaded, Reported)
    assert loaded.methods == {
        "initialize": SourceLine("observed_handler.py", 3, "initialize"),
        "handle": SourceLine("observed_handler.py", 6, "handle"),
    }
    assert "observed_handler" in {each.name for each in loaded.imported}

    assert handler.entry(["a", "b"], None) == [True, True]
    assert received(reports) == Called(2, 2)
    assert handler.entry([], None) == "no list"
    assert received(reports) == Called(0, -1)
    with pytest.raises(ValueError, match="a bad row"):
        handler.entry(["bad"], None)
    place = SourceLine("observed_handler.py", 8, "handle")
    assert received(reports) == Called(1, -1, "ValueError: a bad row", place)
    for _ in range(22):
        handler.entry(["a"], None)
    assert [received(reports).blocks is None for _ in range(22)] == [True] * 21 + [False]


def test_asynchronous_handler_is_not_wrapped(observer, tmp_path):
    class Own(TextHandler):
        pass

    handler = observer[0].load_handler("observed_handler.py:waits", tmp_path)
    assert handler.entry.__name__ == "waits"
    assert (base_of(Own()), base_of(object())) == ("text_handler", "")
