"""Exceptions of user code, told so that its author sees the cause: without frames of ours or of imports."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from modelserver.wire.messages import sendable

_OURS = str(Path(__file__).parent)
MAX_TEXT = 4000


def print_failure(error: BaseException) -> None:
    """Prints the traceback on standard error, where the server collects it."""
    report = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = report
    while part is not None:
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if _is_theirs(frame)])
        part = part.__cause__ or part.__context__
    sys.stderr.write(sendable("".join(report.format())))
    sys.stderr.flush()


def explain_failure(error: BaseException, model_dir: Path) -> str:
    """What went wrong and, where it was in the archive's own code, at which line; a long text is cut."""
    said = _said(error)
    text = in_short(f"{type(error).__name__}: {said}" if said else type(error).__name__)
    if isinstance(error, SyntaxError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(model_dir)]
    if not inside:
        return text
    place = inside[-1]
    return f"{text} ({Path(place.filename).relative_to(model_dir)}, line {place.lineno}, in {place.name})"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the exception is the user's own
        return ""


def in_short(said: str) -> str:
    """What an exception says, in a form that can be sent; of a long text the beginning and its length."""
    text = sendable(said)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    return not (name.startswith((_OURS, "<frozen ")) or name.endswith("importlib/__init__.py"))
