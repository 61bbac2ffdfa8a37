import os
import shlex
import signal
import tempfile

import pytest

from modelserver import __version__
from modelserver.__main__ import main
from modelserver.errors import ConfigError
from modelserver.run import cli
from modelserver.run.cli import build_parser, check, setting_flags
from modelserver.run.pidfile import own_pid_file


@pytest.fixture(autouse=True)
def temp(tmp_path, monkeypatch):
    """A temporary directory of one's own, without variables that steer the server."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("TS_CONFIG_FILE", "TEMP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_flags_of_torchserve_are_read():
    options = build_parser().parse_args(
        shlex.split(
            "--start --ts-config c --model-store s --models a.mar b=c.mar --ncs --dt --enable-model-api"
            " --foreground --ppath p --workflow-store w --log-config l --cpp-log-config x --otel all"
        )
    )

    assert {name: value for name, value in setting_flags(options).items() if value} == {
        "ts_config": "c",
        "model_store": "s",
        "workflow_store": "w",
        "load_models": ["a.mar", "b=c.mar"],
        "disable_token_authorization": True,
        "enable_model_api": True,
        "otel": "all",
    }
    assert (options.foreground, options.no_config_snapshots, options.plugins_path) == (True, True, "p")

    flags = setting_flags(build_parser().parse_args([]))

    assert not any(flags.values())


@pytest.mark.parametrize(
    "arguments", [["--start", "--stop"], ["--version", "--start"], ["--models"], ["--nonsense"]]
)
def test_invalid_flags_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "usage: modelserver" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_is_printed(flag, capsys):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"modelserver Version is {__version__}\n"


def refusal(*arguments):
    with pytest.raises(ConfigError) as caught:
        check(build_parser().parse_args(arguments), {})
    return str(caught.value)


def test_checks_are_made_in_order(temp, monkeypatch):
    """Errors are reported in the order of reference 2.1, one at a time."""
    flags = ["--log-config", "l", "--ts-config", "c", "--model-store", "s"]
    monkeypatch.setenv("TEMP", str(temp / "nowhere"))

    assert refusal(*flags) == f"--log-config file not found: {temp / 'l'}"
    (temp / "l").touch()
    assert (
        refusal(*flags)
        == f"Invalid temp directory: {temp / 'nowhere'}, please check TEMP environment variable."
    )
    monkeypatch.setenv("TEMP", str(temp))
    assert refusal(*flags) == "--ts-config file not found: c"
    (temp / "c").touch()
    assert refusal(*flags) == "--model-store directory not found: s"
    assert refusal(*flags[:4]) == "Missing mandatory parameter --model-store"
    (temp / "s").mkdir()
    assert check(build_parser().parse_args(flags), {}).settings.model_store == temp / "s"


def test_missing_folder_for_temporary_files_stops_the_start(monkeypatch):
    """This happens in a read-only container without a volume: the line names the folders that were tried."""

    def refuse():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", refuse)

    assert refusal() == (
        "No usable temporary directory found in ['/tmp', '/var/tmp']: one must be writable, "
        "in a read-only container a volume at /tmp (--tmpfs /tmp:exec)."
    )


def test_running_server_stops_the_start(temp, capsys):
    with own_pid_file(temp / ".model_server.pid"):
        assert main(["--model-store", "."]) == 1
        assert (temp / ".model_server.pid").exists()
    assert capsys.readouterr().out.startswith("modelserver is already running, please use modelserver --stop")


def test_stale_pid_file_is_removed(temp, monkeypatch, capsys):
    (temp / ".model_server.pid").write_text("999999999")
    monkeypatch.setattr(cli, "start_detached", lambda values, *, wait: 0)

    assert main(["--model-store", "."]) == 0
    assert capsys.readouterr().out == "Removing orphan pid file.\n"
    assert not (temp / ".model_server.pid").exists()


def test_stop_without_a_server_succeeds(temp, capsys):
    (temp / ".model_server.pid").write_text("999999999")

    assert main(["--stop"]) == 0
    assert capsys.readouterr().out == "modelserver is not currently running.\n"
    assert list(temp.iterdir()) == []


class Running:
    """A server that ends some polls after it was stopped."""

    def __init__(self, temp, monkeypatch, error=None):
        (temp / ".model_server.pid").write_text("4242")
        self.looks = 3
        self.signals = []
        self.error = error
        monkeypatch.setattr(cli, "running_server", lambda _: 4242)
        monkeypatch.setattr(cli, "is_alive", self.is_alive)
        monkeypatch.setattr(os, "kill", self.kill)

    def is_alive(self, pid):
        self.looks -= 1
        return self.looks > 0

    def kill(self, pid, number):
        if self.error is not None:
            raise self.error
        self.signals.append((pid, number))


@pytest.mark.parametrize(("flags", "printed"), [([], "modelserver has stopped.\n"), (["--foreground"], "")])
def test_stop_sends_sigterm_and_waits(temp, monkeypatch, capsys, flags, printed):
    """--stop sends SIGTERM and waits; the pid file and an old key file are removed (reference 2.2)."""
    running = Running(temp, monkeypatch)
    (temp / "key_file.json").touch()

    assert main(["--stop", *flags]) == 0
    assert capsys.readouterr().out == printed
    assert running.signals == [(4242, signal.SIGTERM)]
    assert list(temp.iterdir()) == []


def test_stop_that_takes_too_long(temp, monkeypatch, capsys):
    Running(temp, monkeypatch).looks = 10**9
    monkeypatch.setattr(cli, "STOP_TIMEOUT", 0.0)

    assert main(["--stop", "--foreground"]) == 0
    assert capsys.readouterr().out == "Stopping modelserver took too long.\n"


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ProcessLookupError, 0, "modelserver already stopped."),
        (PermissionError, 1, "belongs to another user"),
    ],
)
def test_stop_that_cannot(temp, monkeypatch, capsys, error, code, printed):
    Running(temp, monkeypatch, error)

    assert main(["--stop"]) == code
    assert printed in capsys.readouterr().out


def test_warnings_are_printed_line_by_line(temp, capsys):
    (temp / "c").write_text("job_que_size=3\n")
    options = build_parser().parse_args(
        ["--ts-config", "c", "--model-store", ".", "--ppath", "x", "--print-settings"]
    )
    cli.print_start(options, check(options, {}))
    lines = capsys.readouterr().out.splitlines()

    assert [line for line in lines if line.startswith("Warning: ")] == [
        "Warning: --plugins-path names plugins for a Java server; it has no effect here.",
        "Warning: job_que_size is not a known setting and is ignored; did you mean job_queue_size?",
    ]
    assert f"model_store = {temp} (flag --model-store)" in lines


def test_help_names_every_flag_of_torchserve(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out

    flags = (
        "-v --version --start --stop --ts-config --model-store --workflow-store --models --log-config"
        " --cpp-log-config --foreground --no-config-snapshots --ncs --plugins-path --ppath"
        " --disable-token-auth --dt --enable-model-api"
    )
    assert [flag for flag in flags.split() if flag not in printed] == []
    assert "without effect" in printed
