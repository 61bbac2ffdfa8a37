import logging
import os
import tempfile
from pathlib import Path

import pytest

from modelserver.tools.serve.console import RED, Lines, Style


@pytest.mark.parametrize(
    ("terminal", "environ", "coloured"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colours_need_a_terminal(terminal, environ, coloured, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert Style(environ)("text", RED) == ("\x1b[31mtext\x1b[0m" if coloured else "text")


def test_model_lines_name_the_worker(capsys):
    lines = Lines(Path("/home/me"))
    copy = os.path.join(tempfile.gettempdir(), f"modelserver-{os.getpid()}-abc", "0" * 32, "handler.py")
    logger = logging.getLogger("modelserver.model")
    logger.info('File "%s", line 3', copy, extra={"source": "W-9000-my_model_1.0-stderr"})
    logger.info("a\x1b[2Jb", extra={"source": "W-9000-my_model_1.0-stdout"})
    lines.say("said")
    lines.close()
    printed = capsys.readouterr().out.splitlines()

    assert printed[0] == 'my_model | File "/home/me/handler.py", line 3'
    assert "\x1b" not in printed[1]
    assert printed[2] == "said"


def test_server_lines_have_a_level(capsys):
    lines = Lines()
    logging.getLogger("modelserver.server").info("detail")
    logging.getLogger("modelserver.server").warning("odd")
    logging.getLogger("modelserver.server").error("bad")
    logging.getLogger("modelserver.models").error("could not be replaced")
    logging.getLogger("modelserver.access").warning("GET /")
    lines.close()

    assert capsys.readouterr().out.splitlines() == ["warning: odd", "error: bad"]
    assert not logging.getLogger("modelserver.access").disabled
