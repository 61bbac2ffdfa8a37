"""What happens during a call: files that are read, threads and processes that are started."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final

from modelserver.tools.doctor.probing import Opened, SourceLine, StartedTask

_STARTS: Final = {
    "subprocess.Popen": "process",
    "os.fork": "process",
    "os.forkpty": "process",
    "os.posix_spawn": "process",
}
_NOT_FILES: Final = ("/dev/", "/proc/", "/sys/")
_WRITING: Final = os.O_WRONLY | os.O_RDWR
# The most events of each kind that are kept for one call.
_MOST: Final = 50
# Files whose frames lie between the importing code and the import itself.
_IMPORT_MACHINERY: Final = ("<frozen importlib", "importlib/__init__.py", os.path.dirname(__file__))


class CallWatch:
    """Collects events between :meth:`begin` and :meth:`end`; ``folder`` has the model's own code."""

    def __init__(self, folder: str) -> None:
        self.opened: list[Opened] = []
        self.started: list[StartedTask] = []
        self._folder = folder
        self._on = False
        self._start = threading.Thread.start

    def install(self) -> None:
        """From now on events are seen; this cannot be undone."""
        sys.addaudithook(self.on_event)

        def start(thread: threading.Thread) -> None:
            self._start_thread(thread)

        # Not every Python has an event for threads.
        threading.Thread.start = start  # type: ignore[assignment, method-assign]

    def begin(self) -> None:
        """A call begins."""
        self.opened, self.started = [], []
        self._on = True

    def end(self) -> None:
        """The call has ended."""
        self._on = False

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The hook for audit events, which come for much more than is of interest here."""
        if not self._on:
            return
        if event == "open":
            self._open(*arguments)
        elif event in _STARTS:
            self._note_start(_STARTS[event])

    def _start_thread(self, thread: threading.Thread) -> None:
        if self._on:
            self._note_start("thread")
        self._start(thread)

    def _note_start(self, what: str) -> None:
        if len(self.started) < _MOST:
            self.started.append(StartedTask(what, place_of_caller(self._folder)))

    def _open(self, path: Any, mode: str | None, flags: int) -> None:
        if not isinstance(path, (str, bytes)) or len(self.opened) >= _MOST:
            return
        name = os.fsdecode(path)
        if flags & _WRITING or (mode and set(mode) & set("wax+")) or name.startswith(_NOT_FILES):
            return
        self.opened.append(Opened(name, place_of_caller(self._folder)))


def place_of_caller(folder: str, *, directly: bool = False) -> SourceLine | None:
    """The nearest line of the model's own code that leads here; ``directly``: by nothing but an import."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (place := place_of_code(frame.f_code, folder, frame.f_lineno)) is not None:
            return place
        if directly and not any(part in frame.f_code.co_filename for part in _IMPORT_MACHINERY):
            return None
        frame = frame.f_back
    return None


def place_of_code(code: CodeType, folder: str, line: int = 0) -> SourceLine | None:
    """A line of the code, by default its first; None outside of the folder."""
    prefix = os.path.join(folder, "")
    if not code.co_filename.startswith(prefix):
        return None
    return SourceLine(code.co_filename.removeprefix(prefix), line or code.co_firstlineno, code.co_name)
