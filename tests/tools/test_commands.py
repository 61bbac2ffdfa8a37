import signal

import pytest

from modelserver.__main__ import main
from modelserver.errors import ConfigError
from modelserver.tools import COMMANDS
from modelserver.tools.commands import exit_status, message_of, read_inputs, termination_is_interruption


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  modelserver ")] == [*COMMANDS]


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (FileExistsError("it exists"), 2, "it exists"),
        (OSError("full"), 1, "full"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_failures_have_their_status(raised, status, message, capsys):
    def fail():
        raise raised

    assert exit_status(fail, {FileExistsError: 2, OSError: 1}) == status
    assert capsys.readouterr().err == f"{message}\n"


def test_other_failures_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 // 0, {OSError: 1})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"code": 500, "message": "two\\nlines"}', "two lines"),
        (b"[1]", "[1]"),
        (b"\xff plain", "\ufffd plain"),
    ],
)
def test_an_errors_message_is_one_line(body, message):
    assert message_of(body) == message


def test_folder_of_inputs_is_read_in_order(tmp_path):
    for name in ("b.jpg", "a.json"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "none").mkdir()
    single = tmp_path / "b.jpg"
    picture, text = (single, b"b.jpg", "image/jpeg"), (tmp_path / "a.json", b"a.json", "application/json")

    assert list(read_inputs([single, tmp_path], None)) == [picture, text, picture]
    assert [kind for _, _, kind in read_inputs([tmp_path], "text/x")] == ["text/x"] * 2
    with pytest.raises(ConfigError, match=r"--input=.*none: the folder has no files"):
        list(read_inputs([tmp_path / "none"], None))


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_sigterm_interrupts(handler):
    """It does so too where SIGINT is ignored, as by jobs that a shell has put into the background."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        with termination_is_interruption(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
