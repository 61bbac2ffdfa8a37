import os
import subprocess
import sys
import threading
from pathlib import Path

from modelserver.tools.doctor.probing import Opened, SourceLine, StartedTask
from modelserver.tools.doctor.worker.watch import CallWatch, place_of_caller, place_of_code

_HERE = str(Path(__file__).parent)


def line():
    return sys._getframe(1).f_lineno


def test_files_that_are_read_are_noted():
    watch = CallWatch(_HERE)
    watch.on_event("open", ("/a", "r", 0))
    watch.begin()
    watch.on_event("open", ("/a", "r", 0))
    here = line() - 1
    for path, mode, flags in (
        (b"/b", None, os.O_RDONLY),
        ("/c", "w", os.O_WRONLY),
        ("/d", "rb+", os.O_RDWR),
        ("/dev/null", "r", 0),
        ("/proc/self/stat", "r", 0),
        (3, "r", 0),
    ):
        watch.on_event("open", (path, mode, flags))
    watch.end()
    watch.on_event("open", ("/e", "r", 0))

    place = SourceLine("test_watch.py", here, "test_files_that_are_read_are_noted")
    assert [each.path for each in watch.opened] == ["/a", "/b"]
    assert watch.opened[0] == Opened("/a", place)


def test_a_call_without_end_keeps_only_its_beginning():
    watch = CallWatch("/elsewhere")
    watch.begin()
    for _ in range(100):
        watch.on_event("open", ("/a", "r", 0))
        watch.on_event("os.fork", ())
    assert (len(watch.opened), len(watch.started)) == (50, 50)
    assert watch.started[0] == StartedTask("process", None)
    watch.begin()
    assert (watch.opened, watch.started) == ([], [])


def test_threads_and_processes_are_noted_and_start(monkeypatch):
    hooks = []
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    watch = CallWatch(_HERE)
    watch.install()
    done = threading.Event()

    watch.begin()
    thread = threading.Thread(target=done.set)
    thread.start()
    hooks[0]("subprocess.Popen", (sys.executable,))
    hooks[0]("import", ("json",))
    watch.end()
    thread.join()
    subprocess.run(["true"], check=True)

    assert done.is_set()
    started = [(each.what, each.place is not None) for each in watch.started]
    assert started == [("thread", True), ("process", True)]


def test_place_is_line_of_the_model():
    here = place_of_caller(_HERE)

    assert here == SourceLine("test_watch.py", line() - 2, "test_place_is_line_of_the_model")
    assert place_of_caller("/elsewhere") is None
    assert place_of_code(line.__code__, str(Path(_HERE).parent)) == SourceLine(
        "worker/test_watch.py", line.__code__.co_firstlineno, "line"
    )
