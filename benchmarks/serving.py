"""A server from its launch to its first answer, timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import servers
from benchmarks.peers.launch import Launch
from benchmarks.servers import START_TIMEOUT, BenchmarkError, Running
from benchmarks.works import Question

LOAD_TIMEOUT = 900.0  # seconds for a model: it may be compiled before it is ready


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


@contextlib.contextmanager
def served(launch: Launch, folder: Path) -> Iterator[Served]:
    """Start, register, ask once; all ends with the block. Raises BenchmarkError with the output's end."""
    began = time.perf_counter()
    with servers.process(launch.command, folder, launch.variables) as child:
        with servers.starting(child, folder):
            servers.wait_until(child, partial(servers.unheard, launch.port), START_TIMEOUT)
            listening = time.perf_counter() - began
            health = Question(launch.health)
            servers.wait_until(child, partial(servers.unanswered, launch.port, health), START_TIMEOUT)
            if launch.registration is not None:
                _register(*launch.registration)
            ready = time.perf_counter() - began
            servers.wait_until(child, partial(servers.unanswered, launch.port, launch.question), LOAD_TIMEOUT)
            start = Start(listening, ready, time.perf_counter() - began)
        yield Served(Running(child.pid, launch.port, folder), launch.question, start)


def _register(port: int, target: str) -> None:
    try:
        status, answer = servers.call(port, "POST", target, timeout=LOAD_TIMEOUT)
    except OSError as error:
        raise BenchmarkError(f"POST {target}: {error!r}") from error
    # As where int8 was asked for, and cannot be used.
    if status != 200 or b'"warnings": [' in answer:
        raise BenchmarkError(f"POST {target} was answered {status}: {answer.decode(errors='replace')}")
