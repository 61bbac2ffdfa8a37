"""Turns a forked process into a worker like a spawned one."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from modelserver.engine.wire.marks import Mark
from modelserver.engine.worker.runtime import run_worker

if TYPE_CHECKING:
    from modelserver.ext.forking.messages import Spawn

# The package that a spawned worker runs.
_WORKER = "modelserver.engine.worker"
_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads",
)


@dataclass(frozen=True, slots=True)
class Birth:
    """The parameters of a forked worker; ``foreign`` are the spawner's descriptors, which it closes."""

    request: Spawn
    descriptors: Sequence[int]
    foreign: Sequence[int]
    server_pid: int


def become_worker(birth: Birth) -> NoReturn:
    """Turns the process into a worker and runs it to its end."""
    connection, out, err, life = birth.descriptors
    os.setsid()
    die_when_closed(life)
    for descriptor in birth.foreign:
        os.close(descriptor)
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    replace_environment(birth.request.environment)
    show_mark(Mark.of(birth.request.environment))
    set_threads(birth.request.threads)
    reseed()
    arguments = [str(connection), str(birth.server_pid)]
    package = Path(str(sys.modules[_WORKER].__file__)).parent
    sys.argv[:] = [str(package / "__main__.py"), *arguments]
    show_command(_WORKER, *arguments)
    gc.enable()
    leave(lambda: run_worker(connection))


def die_when_closed(pipe: int) -> None:
    """Arranges for this process to end once the other end of the pipe is closed.

    The parent of a forked worker is not the server. The kernel sends SIGKILL when the state of the pipe
    changes; nothing is ever written to it.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # It may have been closed before the call above.
    poller = select.poll()
    poller.register(pipe, 0)
    if poller.poll(0):
        os._exit(1)


def leave(work: Callable[[], None]) -> NoReturn:
    """Does the work and ends the process as the interpreter would, but without its finalization.

    That would write to all memory, so that shared pages would be copied.
    """
    code = 0
    try:
        work()
    except SystemExit as end:
        code = exit_code(end.code)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def exit_code(code: object) -> int:
    """The exit code for a :class:`SystemExit`, whose argument is a number, None, or a text to print."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replaces the environment of Python, of C and of child processes."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()


def set_threads(threads: int) -> None:
    """Sets the threads of numeric libraries, which have already read their variables."""
    torch = sys.modules.get("torch")
    # The spawner's variables allow all cores, so its number is the maximum.
    if torch is not None and threads < torch.get_num_threads():
        torch.set_num_threads(threads)
    threads = min(threads, len(os.sched_getaffinity(0)))
    for library in openblas_libraries():
        for name in _OPENBLAS_SETTERS:
            with contextlib.suppress(AttributeError):
                getattr(library, name)(threads)
                break


def openblas_libraries() -> list[ctypes.CDLL]:
    """The loaded OpenBLAS libraries; numpy includes one."""
    maps = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    paths = {line.rpartition(" ")[2] for line in maps if "openblas" in line}
    return [ctypes.CDLL(path) for path in sorted(paths) if Path(path).is_file()]


def reseed() -> None:
    """Reseeds random generators; Python's and OpenSSL's detect a fork themselves."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def show_mark(mark: Mark) -> None:
    """Overwrites the spawner's mark in the memory that the kernel reads; children inherit it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        start, end = _memory_of(47)
        old = Path("/proc/self/environ").read_bytes()
        ((name, text),) = mark.variables.items()
        position = (b"\0" + old).find(b"\0" + name.encode() + b"=")
        value, new = position + len(name) + 1, text.encode()
        if position >= 0 and len(old) == end - start and old.find(b"\0", value) == value + len(new):
            ctypes.memmove(start + value, new, len(new))


def _memory_of(field: int) -> tuple[int, int]:
    """Two consecutive addresses in the process's statistics."""
    fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return int(fields[field]), int(fields[field + 1])


def show_command(module: str, descriptor: str, server_pid: str) -> None:
    """Makes the process list show the worker's command by overwriting the spawner's, in the same length."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        start, end = _memory_of(45)
        old = Path("/proc/self/cmdline").read_bytes()
        parts = [old.split(b"\0")[0], b"-m", module.encode(), b"", server_pid.encode(), b""]
        room = end - start - sum(map(len, parts)) - len(parts) + 1
        parts[3] = descriptor.encode().rjust(room, b"0")
        new = b"\0".join(parts)
        if len(new) == len(old) == end - start:
            ctypes.memmove(start, new, len(new))
