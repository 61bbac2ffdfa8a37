"""A server from its launch to its first answer, timed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.servers import START_TIMEOUT, BenchmarkError, Running, accepts, call, process, wait_until
from benchmarks.works import Question
from modelserver.tools.tune.own_server import last_output

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.peers.launch import Launch
LOAD_TIMEOUT = 900.0  # seconds for a model: it may be compiled before it is ready
_WRONG = (400, 405, 415, 422)  # what waiting does not mend


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the process was made: its port accepts, its model is ready, its first answer is there."""

    listening_s: float
    ready_s: float
    answer_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """A running server, what to ask it, and how it started."""

    running: Running
    question: Question
    start: Start

    @property
    def url(self) -> str:
        """Where the question is posted."""
        return self.running.url(self.question.path)


@contextlib.contextmanager
def served(launch: Launch, folder: Path) -> Iterator[Served]:
    """Start, register, ask once; all ends with the block. Raises BenchmarkError with the output's end."""
    began = time.perf_counter()
    with process(launch.command, folder, launch.variables) as child:
        try:
            start = _started(child, launch, began)
        except (BenchmarkError, TimeoutError) as error:
            raise BenchmarkError(f"{error}\n{last_output(folder / 'output')}") from None
        yield Served(Running(child.pid, launch.port, folder), launch.question, start)


def _started(child: subprocess.Popen[bytes], launch: Launch, began: float) -> Start:
    wait_until(child, lambda: accepts(launch.port), "it does not listen", START_TIMEOUT)
    listening = time.perf_counter() - began
    _until_ok(child, launch.port, Question(launch.health, b"", ""), START_TIMEOUT)
    if launch.registration is not None:
        _register(*launch.registration)
    ready = time.perf_counter() - began
    _until_ok(child, launch.port, launch.question, LOAD_TIMEOUT)
    return Start(listening, ready, time.perf_counter() - began)


def _register(port: int, target: str) -> None:
    try:
        status, answer = call(port, "POST", target, timeout=LOAD_TIMEOUT)
    except OSError as error:
        raise BenchmarkError(f"POST {target}: {error!r}") from error
    # As where int8 was asked for, and cannot be used.
    if status != 200 or b'"warnings": [' in answer:
        raise BenchmarkError(f"POST {target} was answered {status}: {answer.decode(errors='replace')}")


def _until_ok(child: subprocess.Popen[bytes], port: int, question: Question, timeout: float) -> None:
    """Ask until the answer is 2xx; a body that is refused as wrong is not sent again."""
    problem = "nothing"

    def ok() -> bool:
        nonlocal problem
        method = "POST" if question.body else "GET"
        try:
            status, answer = call(
                port, method, question.path, question.body or None, content_type=question.content_type
            )
        except OSError as error:
            problem = repr(error)
            return False
        problem = f"{status} {answer[:300].decode(errors='replace')}"
        if question.body and status in _WRONG:
            raise BenchmarkError(f"{question.path} was answered {problem}")
        return 200 <= status < 300

    try:
        wait_until(child, ok, f"no 2xx from {question.path}", timeout)
    except TimeoutError as error:
        raise BenchmarkError(f"{error}, but {problem}") from None
