"""``modelserver record`` without a server; tests/e2e has whole recordings."""

import errno
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from modelserver.ext.recording.entries import Ended, Lost, framed, pack
from modelserver.ext.recording.file import read
from modelserver.tools.replay import record
from modelserver.tools.replay.record import main


@pytest.fixture
def serve():
    """A management address that answers as the test says; returns its URL."""
    servers = []

    def start(status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_what_the_server_sends_is_recorded(serve, tmp_path, make_call, capsys):
    url = serve(200, framed(pack([])) + framed(pack([make_call(), Lost(2)])) + framed(pack([Ended("over")])))
    out = tmp_path / "a.msr"

    assert main(["--out", str(out), "--management", url]) == 0
    assert "1 request, not recorded: 2 found the buffer full" in capsys.readouterr().out
    assert (read(out).calls, read(out).ended) == ([make_call()], "over")
    assert out.stat().st_mode & 0o777 == 0o600
    url = serve(200, framed(pack([make_call()])) + framed(pack([make_call()]))[:-5])
    assert main(["--out", str(out), "--force", "--management", url]) == 1
    assert f"The server is gone. {out} holds 1 request." in capsys.readouterr().err
    assert len(read(out).calls) == 1


def test_a_disk_that_is_full_from_the_start(serve, tmp_path, capsys, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record, "Writer", refuse)
    out = tmp_path / "a.msr"

    assert main(["--out", str(out), "--management", serve(200, framed(pack([])))]) == 1
    assert capsys.readouterr().err == f"{out} cannot be written: No space left on device.\n"
    assert not out.exists()


def test_a_device_stays_as_it_is(serve, capsys):
    """Others use it, too, as they do /dev/null and /dev/full."""
    leader, follower = os.openpty()
    out = Path(os.ttyname(follower))
    before = out.stat().st_mode
    url = serve(200, framed(pack([Ended("over")])))
    status = main(["--out", str(out), "--force", "--management", url])
    after = out.stat().st_mode
    os.close(leader)
    os.close(follower)

    assert (status, after) == (1, before)
    assert f"{out} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (405, b'{"message": "not allowed"}', "allow_recording=true"),
        (404, b'{"message": "Requested resource is not found"}', "allow_recording=true"),
        (401, b'{"message": "Token authentication failed"}', "--token-file"),
        (409, b"busy", "(409): busy"),
    ],
)
def test_refusal_is_reported_with_hint(serve, tmp_path, capsys, status, body, message):
    assert main(["--out", str(tmp_path / "a.msr"), "--management", serve(status, body)]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.msr").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--sample", "0"), "sample=0: a share above 0, at most 1, is needed."),
        (("--seconds", "nan"), "seconds=nan: a positive number is needed."),
        (("--requests", "-1"), "requests=-1: a positive number is needed."),
        (("--headers", "x-mark,x y"), "header=x y: the name of a header is needed."),
        (("--headers", "Cookie"), "header=Cookie: headers that hold credentials are never recorded."),
        (("--out", "nodir/x"), "--out=nodir/x: there is no folder nodir"),
    ],
)
def test_bad_command_lines_are_refused(tmp_path, capsys, flags, message):
    out = tmp_path / "a.msr"

    assert main(["--out", str(out), "--management", "http://127.0.0.1:9", *flags]) == 2
    assert capsys.readouterr().err == f"{message}\n"
    assert not out.exists()


def test_files_that_exist(serve, tmp_path, capsys):
    url = serve(200, framed(pack([Ended("over")])))
    assert main(["--out", str(tmp_path), "--force", "--management", url]) == 2
    assert f"Is a directory: '{tmp_path}'" in capsys.readouterr().err
    (tmp_path / "a.msr").write_text("mine")

    assert main(["--out", str(tmp_path / "a.msr"), "--management", "http://127.0.0.1:9"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "b.msr"), "--management", "http://127.0.0.1:9"]) == 1
    assert "No server answers at http://127.0.0.1:9" in capsys.readouterr().err
