import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import uvloop

from modelserver.tools.tune import bench as bench_module
from modelserver.tools.tune.bench import Input, LocalBench
from modelserver.tools.tune.errors import SettingRefused, TuningError
from modelserver.tools.tune.goal import ModelSetting


class Server:
    """Answers each body with itself, one that is a status with that."""

    made: list

    def __init__(self, folder, store, **values):
        self.folder = folder
        self.values = values
        self.stopped = False
        Server.made.append(self)

    def register(self, url, setting):
        if url == "gone":
            raise ConnectionRefusedError("nobody there")
        return {"jobQueueStatus": {"remainingCapacity": 100}, "url": url}

    def ask(self, body, content_type):
        return (int(body), b'{"message": "no"}') if body.isdigit() else (200, body)

    def stop(self):
        self.stopped = True


@pytest.fixture(autouse=True)
def _servers(monkeypatch):
    Server.made = []
    monkeypatch.setattr(bench_module, "OwnServer", Server)


def make(folder, *bodies, url="m"):
    source = SimpleNamespace(url=url, store=folder)
    return LocalBench(source, [Input(f"input {body!r}", body, "text/plain") for body in bodies], folder, None)


SETTING = ModelSetting(batch_size=4, workers=1)


def test_one_server_serves_all_settings(tmp_path):
    """Threads are the model's own, so that they need no other server; it ends with the bench."""
    bench = make(tmp_path, b"a", b"long")
    rooms = [bench.serve(setting) for setting in (SETTING, SETTING, replace(SETTING, threads=2))]
    bench.close()

    assert (rooms, bench.description["url"]) == ([100, 100, 100], "m")
    assert [server.folder.name for server in Server.made] == ["server"]
    assert [server.values["largest_body"] for server in Server.made] == [4]
    assert all(server.stopped for server in Server.made)


def test_inputs_that_are_answered_with_an_error_are_refused(tmp_path):
    """A server that is gone ends the tuning instead."""
    with pytest.raises(SettingRefused, match="input b'503' was answered 503: no"):
        make(tmp_path, b"a", b"503").serve(SETTING)
    with pytest.raises(TuningError, match="no longer responds: nobody there"):
        make(tmp_path, b"a", url="gone").serve(SETTING)


def test_an_interruption_while_the_loop_is_made(tmp_path, monkeypatch):
    """It waits until the loop runs: neither a loop nor a coroutine is left behind, nor a blocked signal."""
    bench = make(tmp_path, b"x")
    bench._server = SimpleNamespace(inference=1)

    def run(main):
        signal.raise_signal(signal.SIGINT)
        return uvloop.run(main)

    monkeypatch.setattr(bench_module, "uvloop", SimpleNamespace(run=run))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    with pytest.raises(KeyboardInterrupt):
        bench.closed(1, 0.1, 0.0, 1.0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
