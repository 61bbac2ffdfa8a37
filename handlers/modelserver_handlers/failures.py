"""Reports exceptions of user code, without frames of ours or of imports, and says what they mean."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError

from modelserver.engine.wire.messages import sendable, without_escapes
from modelserver_handlers.errors import GpuNotUsable, ModelLoadError, text_of
from modelserver_handlers.loader import HandlerNotUsable

# Parts of the path of what loads and calls handlers, and takes what they return.
_BETWEEN = re.compile(
    r"/modelserver/engine/worker/|importlib/__init__\.py$"
    r"|/modelserver_handlers/(typed/|(answers|arrays|contract|loader|metrics/collected|streaming)\.py$)"
)
MAX_TEXT = 4000
MAX_REQUESTS = 16


def print_failure(error: BaseException, requests: Sequence[str] = (), hint: str = "") -> None:
    """Prints the request ids, the traceback and the hint on standard error, which the server collects.

    Of an error that the handler raised for a client's fault it prints one line.
    """
    whose = f"Failed for {_listed(requests)}:\n" if requests else ""
    status, message = for_clients(error) or (500, "")
    if 400 <= status < 500:
        lines = [f"{whose}{status} {in_short(str(message))}".replace("\n", " "), "\n"]
    else:
        report = traceback.TracebackException.from_exception(error)
        part: traceback.TracebackException | None = report
        while part is not None:
            part.stack = traceback.StackSummary.from_list([f for f in part.stack if _is_of_model(f)])
            part = part.__cause__ or part.__context__
        lines = [whose, *report.format(), f"Hint: {hint}\n" if hint else ""]
    sys.stderr.write(sendable("".join(lines)))
    sys.stderr.flush()


def for_clients(error: BaseException) -> tuple[int, object] | None:
    """Status and message of an error that is meant for clients (reference 13.1), None for any other."""
    if all(each.__name__ != "PredictionException" for each in type(error).__mro__):
        return None
    try:
        status, message = getattr(error, "error_code", None), getattr(error, "message", None)
    except Exception:  # noqa: BLE001 - the exception is the user's own
        return None
    return (status, text_of(error) if message is None else message) if isinstance(status, int) else None


def _listed(requests: Sequence[str]) -> str:
    names = ", ".join(requests[:MAX_REQUESTS])
    more = len(requests) - MAX_REQUESTS
    return f"request{'s' if len(requests) > 1 else ''} {names}{f' and {more} more' if more > 0 else ''}"


def explain_failure(error: BaseException, model_dir: Path, hint: str = "") -> str:
    """The error and its line in the archive's own code, if it was raised there; long texts are cut."""
    text = text_of(error)
    text = in_short(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    return located(text, error, model_dir, hint)


def located(text: str, error: BaseException, model_dir: Path, hint: str = "") -> str:
    """The text with the place in the archive's own code where the error was raised, and with a hint."""
    whole = f"{text}{'' if isinstance(error, SyntaxError) else _place(error, model_dir)}"
    return f"{whole.removesuffix('.')}. Hint: {hint}" if hint else whole


def _place(error: BaseException, model_dir: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(model_dir)]
    if not inside:
        return ""
    last = inside[-1]
    return f" ({Path(last.filename).relative_to(model_dir)}, line {last.lineno}, in {last.name})"


def in_short(text: str) -> str:
    """A text in a form that can be sent, without colours; a long one is cut, with its length."""
    text = without_escapes(sendable(text))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _is_of_model(frame: traceback.FrameSummary) -> bool:
    return not (frame.filename.startswith("<frozen ") or _BETWEEN.search(frame.filename))


# Retrying cannot help with these, nor with yaml.YAMLError.
_PERMANENT = (
    HandlerNotUsable,
    ModelLoadError,
    ImportError,
    SyntaxError,
    FileNotFoundError,
    AttributeError,
    NameError,
    TypeError,
    UnpicklingError,
)


def is_permanent(error: Exception) -> bool:
    """Whether loading again cannot help."""
    # An error of yaml's can only come where yaml has been imported.
    yaml = sys.modules.get("yaml")
    if isinstance(error, GpuNotUsable):
        return False
    return isinstance(error, _PERMANENT) or (yaml is not None and isinstance(error, yaml.YAMLError))
