import sys
from types import ModuleType

import pytest

import modelserver
from modelserver.tools.serve import script


class Doubler(modelserver.Handler):
    def predict(self, rows):
        return rows


def handle(data, context):
    return data


@pytest.fixture
def commands(monkeypatch):
    """The commands that would have been run; no worker code is loaded."""
    ran = []
    monkeypatch.setattr(script, "_run", lambda command: ran.append(command) or 0)
    monkeypatch.delitem(sys.modules, "modelserver_handlers.loader", raising=False)
    return ran


def test_the_command_is_run(commands, monkeypatch):
    """A worker imports the script, which may call it: there it does nothing."""
    assert modelserver.serve(Doubler, batch_size=8, workers=2, port=9000, reload=True) == 0
    modelserver.serve(handle, name="m", max_batch_delay=5, model_file="w.pt")

    first = f"-m modelserver serve {__file__}:Doubler --batch-size 8 --workers 2 --port 9000 --reload"
    second = f"-m modelserver serve {__file__}:handle --name m --max-batch-delay 5 --model-file w.pt"
    assert commands == [[sys.executable, *words.split()] for words in (first, second)]
    monkeypatch.setitem(sys.modules, "modelserver_handlers.loader", ModuleType("loader"))
    assert modelserver.serve(Doubler) == 0
    assert len(commands) == 2


def test_what_workers_cannot_import(commands, tmp_path):
    class Local(modelserver.Handler):
        pass

    typed = type("Typed", (modelserver.Handler,), {"__module__": "__no_such_module__"})
    for handler, message in (
        (Local, "defined inside of another .*: define it at the top level"),
        (typed, "not in a file"),
        (Doubler(), r"neither a class nor a function: pass the class itself, without \(\)"),
        ("handler.py", "a file is served by `modelserver serve FILE`"),
        (None, "neither a class nor a function"),
    ):
        with pytest.raises(ValueError, match=message):
            modelserver.serve(handler)
    assert commands == []
