import pytest

from modelserver.engine.worker import service
from modelserver_handlers import answers, arrays, contract, loader, streaming
from modelserver_handlers.errors import GpuNotUsable, ModelLoadError, PredictionException
from modelserver_handlers.failures import explain_failure, is_permanent, print_failure
from modelserver_handlers.metrics import collected


def test_failure_without_a_text_is_cut_or_left_out(tmp_path, capsys):
    """A megabyte of text does not become an answer to a registration; a text that fails is left out (F44)."""

    class Strange(Exception):
        """An exception that cannot be turned into text."""

        def __str__(self):
            raise ValueError

    explained = explain_failure(ValueError("x" * 1_000_000), tmp_path)

    assert explained.startswith("ValueError: xxx")
    assert explained.endswith("x… (1000012 characters)")
    assert len(explained) < 5000
    assert explain_failure(Strange(), tmp_path) == "Strange"

    print_failure(Strange())
    assert "Strange" in capsys.readouterr().err


def test_cause_names_the_line_in_the_archive(tmp_path):
    """The reason of a failed load says what and, in the archive's own code, where (F40)."""
    (tmp_path / "code").mkdir()
    path = tmp_path / "code" / "handler.py"
    path.write_text("def load():\n    return helper()\n\ndef helper():\n    int('x')\n")
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        scope["load"]()

    text = explain_failure(caught.value, tmp_path)
    assert text.startswith("ValueError: invalid literal")
    assert text.endswith("(code/handler.py, line 5, in helper)")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("no memory"), "RuntimeError: no memory"),
        (KeyError(), "KeyError"),
        (SyntaxError("bad", ("h.py", 3, 1, "x")), "SyntaxError: bad (h.py, line 3)"),
        (ValueError("\ud800"), "ValueError: ?"),
        (ValueError("\x1b[1mbold\x1b[0m"), "ValueError: bold"),
    ],
)
def test_cause_outside_the_archive_is_one_line(error, text, tmp_path):
    assert explain_failure(error, tmp_path) == text


def test_fault_of_a_client_is_one_line(capsys):
    """Not a traceback for each request that cannot be answered; the class may be that of TorchServe."""
    foreign = type("PredictionException", (Exception,), {"error_code": 400})
    for error in (PredictionException("no\nwords", 400), foreign("no\nwords")):
        print_failure(error, ["3f0c"])
        assert capsys.readouterr().err == "Failed for request 3f0c: 400 no words\n"
    print_failure(PredictionException("no words", 500), ["3f0c"])
    assert "PredictionException: no words" in capsys.readouterr().err


@pytest.mark.parametrize(
    "ours",
    [service, answers, arrays, contract, loader, collected, streaming],
    ids=lambda module: module.__name__,
)
def test_printed_failure_shows_the_authors_frames_only(ours, tmp_path, capsys):
    scope = {}
    source = "def handle():\n    1 / 0\n"
    exec(compile(source, str(tmp_path / "handler.py"), "exec"), scope)
    wrapper = {"handle": scope["handle"]}
    exec(compile("def call():\n    handle()\n", ours.__file__, "exec"), wrapper)

    with pytest.raises(ZeroDivisionError) as caught:
        wrapper["call"]()
    print_failure(caught.value)

    printed = capsys.readouterr().err
    assert "handler.py" in printed
    assert "ZeroDivisionError: division by zero" in printed
    assert ours.__file__ not in printed


def test_mistakes_are_not_tried_again():
    import yaml

    mistakes = (yaml.YAMLError, SyntaxError, TypeError, NameError, AttributeError, ImportError)
    assert [error for error in mistakes if not is_permanent(error("no"))] == []
    assert not is_permanent(OSError("no"))
    assert not is_permanent(GpuNotUsable("no"))
    assert is_permanent(ModelLoadError("no weights"))
