import os

import psutil
import pytest

from modelserver.surface.auth.scopes import Scope
from modelserver.tools import running_server
from modelserver.tools.running_server import RunningServer, management_url, token


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with configuration and tokens, while this process runs elsewhere, without tokens."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("MODELSERVER_MANAGEMENT_TOKEN", raising=False)
    (tmp_path / "my.properties").write_text("management_address=http://127.0.0.1:9081\n")
    (tmp_path / "key_file.json").write_text('{"management": {"key": "from-the-file"}}')
    return tmp_path


def test_running_server_is_read_from_pid_file(folder, monkeypatch):
    line = ["python", "-m", "modelserver", "--start", "--ts-config", "my.properties"]
    monkeypatch.setattr(running_server, "running_server", lambda _: os.getpid())
    monkeypatch.setattr(psutil.Process, "cwd", lambda _: str(folder))
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: line)
    running = RunningServer.detect()

    assert running == RunningServer(folder, folder / "my.properties")
    assert management_url(None, running) == "http://127.0.0.1:9081"
    monkeypatch.setattr(running_server, "running_server", lambda _: None)
    assert RunningServer.detect() is None


def test_without_server_settings_apply(folder):
    assert management_url(folder / "my.properties", None) == "http://127.0.0.1:9081"
    assert management_url(None, None) == "http://127.0.0.1:8081"


def test_token_is_taken_from_file_environment_or_key_file(folder, monkeypatch):
    running, here = RunningServer(folder, None), "http://127.0.0.1:8081"
    (folder / "own.json").write_text('{"management": "chosen-by-me"}')

    assert token(Scope.MANAGEMENT, None, here, running) == "from-the-file"
    assert token(Scope.MANAGEMENT, None, "unix:/tmp/socket", running) == "from-the-file"
    assert token(Scope.MANAGEMENT, None, "http://0.0.0.0:8081", running) == "from-the-file"
    assert token(Scope.MANAGEMENT, None, "http://example.org", running) is None
    assert token(Scope.MANAGEMENT, None, "http://example.org", running, is_its=True) == "from-the-file"
    assert token(Scope.INFERENCE, None, here, running) is None
    assert token(Scope.MANAGEMENT, None, here, None) is None
    assert token(Scope.MANAGEMENT, folder / "own.json", "http://example.org", running) == "chosen-by-me"
    monkeypatch.setenv("MODELSERVER_MANAGEMENT_TOKEN", "from-the-environment, second-one")
    assert token(Scope.MANAGEMENT, None, here, running) == "from-the-environment"
