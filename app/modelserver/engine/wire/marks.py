"""Finds a worker's descendants by a mark in their environment, wherever they are in the process tree.

Every worker has its own mark in the variable ``MODELSERVER_WORKER``, which all its descendants inherit, even
in other sessions or after losing their parent. When a worker has ended, however it ended, all processes with
its mark are killed. A program that should outlive its worker must be started without the variable.

A mark begins with the server's process id and start time, so that those of servers that are gone can be
detected. It is only valid in its process namespace: processes in containers are not touched. Without
``/proc``, nothing happens.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modelserver.engine.resources import read

MARK = "MODELSERVER_WORKER"
# All of one length: a forked worker overwrites the spawner's with its own.
_FORM = "{pid:010d}.{started:020d}.{unique}"
_MARK = re.compile(r"(\d{10})\.(\d{20})\.[0-9a-f]{32}", re.ASCII)
_SERVER = 31
_PROC = Path("/proc")
# Rounds after which processes that start others faster than they are killed are left.
_ROUNDS = 50
# Seconds in which a killed process is gone, if at all.
_PATIENCE = 1.0


def new_mark() -> str:
    """A mark for a worker of this server."""
    pid = os.getpid()
    return _FORM.format(pid=pid, started=_start_of(pid) or 0, unique=uuid.uuid4().hex)


@dataclass(frozen=True)
class Mark:
    """The mark of a new worker of this server."""

    text: str = field(default_factory=new_mark)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Mark:
        """That of a process with this environment; empty if it has none."""
        return cls(environment.get(MARK, ""))

    @property
    def variables(self) -> dict[str, str]:
        """The variables for the worker's environment."""
        return {MARK: self.text}

    def end(self) -> int:
        """Kills all other processes that have it; returns how many."""
        return _end(lambda mark: mark == self.text)

    def end_all(self) -> int:
        """Kills all other processes of workers of the same server; returns how many."""
        return _end(lambda mark: mark[:_SERVER] == self.text[:_SERVER])

    @staticmethod
    def end_orphans() -> int:
        """Kills the remaining processes of workers whose server is gone; returns how many."""
        return _end(lambda mark: not _server_lives(mark))


def _end(is_meant: Callable[[str], bool]) -> int:
    ended = 0
    for _ in range(_ROUNDS):
        killed = [descriptor for pid in _others() if (descriptor := _kill(pid, is_meant)) is not None]
        if not killed:
            break
        ended += len(killed)
        _await_ends(killed)
    return ended


def _others() -> list[int]:
    """The processes of this namespace, without this one."""
    try:
        names = os.listdir(_PROC)
    except OSError:
        return []
    return [int(name) for name in names if name.isdecimal() and int(name) != os.getpid()]


def _kill(pid: int, is_meant: Callable[[str], bool]) -> int | None:
    """Kills the process if it has the mark, and then returns its descriptor."""
    if not _is(pid, is_meant):
        return None
    descriptor = None
    try:
        descriptor = os.pidfd_open(pid)
        # The number may have been reused until now, but no longer.
        if _is(pid, is_meant):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return descriptor
    except OSError:
        pass
    if descriptor is not None:
        os.close(descriptor)
    return None


def _await_ends(descriptors: list[int]) -> None:
    end = time.monotonic() + _PATIENCE
    for descriptor in descriptors:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(max(0.0, end - time.monotonic()) * 1000)
        os.close(descriptor)


def _is(pid: int, is_meant: Callable[[str], bool]) -> bool:
    """Whether the process has a mark that is meant, and is in this namespace."""
    mark = mark_of(pid)
    return bool(mark) and is_meant(mark) and _namespace(pid) == _namespace(os.getpid())


def mark_of(pid: int) -> str:
    """The mark that a process was started with; empty if it has none, has ended, or is not ours."""
    environment = read(_PROC / str(pid) / "environ")
    mark = f"\0{environment}".partition(f"\0{MARK}=")[2].partition("\0")[0]
    return mark if _MARK.fullmatch(mark) else ""


def _namespace(pid: int) -> str:
    try:
        return os.readlink(_PROC / str(pid) / "ns" / "pid")
    except OSError:
        return ""


def _server_lives(mark: str) -> bool:
    pid, started, _ = mark.split(".")
    return _start_of(int(pid)) == int(started)


def _start_of(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if it has ended or is unknown."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        # A zombie has ended, however long nobody asks for its exit status.
        return None if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
