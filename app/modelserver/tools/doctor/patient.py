"""The model that is checked: its worker is observed, and each request is seen with what the handler did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import psutil

from modelserver.engine.pools.interpreter import worker_command
from modelserver.engine.pools.output import without_quote
from modelserver.engine.pools.spec import WorkerSpec
from modelserver.errors import ModelServerError
from modelserver.testing.answer import Answer
from modelserver.testing.local import Client
from modelserver.tools.doctor.probing import PROBE, Called, Report, Reported, SourceLine
from modelserver.tools.doctor.samples import InputRow

# Seconds for a worker that has ended to be seen as such, and for another to take its place.
_SOON = 0.3
_PATIENCE = 120.0
_SEQUENCE = "check-"
_NUMBERED = re.compile(rb"(?<=check-)\d+")
_PLACE = re.compile(r"\((?P<file>[^()\s]+\.py), line (?P<line>\d+)(?:, in (?P<name>[^()]+))?\)")
_MODULE = "modelserver.tools.doctor.worker"
_LARGEST = 1 << 20  # bytes of a report
_decode = msgspec.msgpack.Decoder(Report).decode


class WorkerGone(Exception):
    """The worker has ended, and no other one has loaded the model."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The answers to requests that arrived together, the handler's calls for them, and how the worker ended.

    ``ended`` is empty if it lives.
    """

    answers: list[Answer]
    calls: list[Called]
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Readings:
    """The worker's memory in bytes, its threads, and the processes below it."""

    resident: int
    threads: int
    processes: int


class Patient:
    """A context manager: entering it loads the model, and raises as :class:`Client` does."""

    def __init__(self, source: str, *, model_file: str | None, settings: Mapping[str, Any]) -> None:
        self._observed = ObservedWorkers()
        self.client = Client(source, model_file=model_file, settings=settings, start=lambda: self._observed)

    def __enter__(self) -> Patient:
        try:
            self.client.__enter__()
        except BaseException:
            self._observed.close()
            raise
        self._observed.read()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self._observed.close()

    @property
    def loaded(self) -> Reported:
        """How the model was loaded."""
        return self._observed.loads[0]

    @property
    def calls(self) -> list[Called]:
        """All calls so far."""
        return self._observed.calls

    @property
    def is_concurrent(self) -> bool:
        """Whether requests join and leave one by one, instead of in batches."""
        options, model = self.client.model.options, self.client.model.pool.crew.model
        return options.continuous_batching or options.async_communication or bool(model and model.concurrency)

    def grow(self, batch_size: int) -> int:
        """Has batches of this size sent, if the model allows that; returns the largest size there is."""
        options = self.client.model.options
        if self.is_concurrent:
            return batch_size
        with contextlib.suppress(ModelServerError):
            if options.batch_size < batch_size:
                self.client.change(batch_size=batch_size)
        return self.client.model.options.batch_size

    def rows(self, samples: Sequence[InputRow], count: int) -> list[InputRow]:
        """So many rows, the samples in turn; each is the first of a sequence of its own, if there are any."""
        rows = [samples[number % len(samples)] for number in range(count)]
        names = self.client.model.sequence_headers
        if names is None:
            return rows
        return [
            replace(row, headers={**row.headers, names.id: f"{_SEQUENCE}{number}", names.start: "true"})
            for number, row in enumerate(rows)
        ]

    def ask(self, rows: Sequence[InputRow]) -> BatchOutcome:
        """Sends the rows together. Raises WorkerGone if the worker ends and none replaces it."""
        before, known = self._pid(), len(self._observed.calls)
        path = f"/predictions/{self.client.name}"
        answers = self.client.post_all([(path, row.body, row.all_headers) for row in rows])
        if self.client.model.sequence_headers is not None:
            # Handlers may say whose sequence it is, which has nothing to do with the answer.
            answers = [replace(each, body=_NUMBERED.sub(b"", each.body)) for each in answers]
        ended = self._ended(before) if any(answer.status >= 500 for answer in answers) else ""
        self._observed.read()
        return BatchOutcome(answers, self._observed.calls[known:], ended)

    def renew(self) -> None:
        """Has another process take the worker's place. Raises WorkerGone if it does not load the model."""
        before = self._pid()
        (worker,) = self.client.model.pool.workers

        async def end() -> None:
            worker.kill("Another process is to answer.")

        self.client.run(end())
        self._ended(before)

    def readings(self) -> Readings | None:
        """What the worker holds; None if it has just ended."""
        try:
            process = psutil.Process(self._pid())
            return Readings(
                process.memory_info().rss, process.num_threads(), len(process.children(recursive=True))
            )
        except psutil.Error:
            return None

    def _pid(self) -> int:
        """The worker's process, 0 while there is none."""
        (worker,) = self.client.model.pool.workers
        return 0 if worker.process is None else worker.process.pid

    def _ended(self, pid: int) -> str:
        """How the process ended, once another has loaded the model; empty if it has not ended."""
        pool = self.client.model.pool
        deadline = time.monotonic() + _SOON
        while (self._pid() == pid and pool.ready) and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._pid() == pid and pool.ready:
            return ""
        reason = without_quote(pool.failure).partition("\n")[0]
        deadline = time.monotonic() + _PATIENCE
        while not (pool.ready and self._pid()):
            if time.monotonic() > deadline:
                raise WorkerGone(pool.failure)
            time.sleep(0.02)
        return reason or "it ended"


def place_in(text: str) -> SourceLine | None:
    """The line of the model's own code that an error names."""
    match = _PLACE.search(text)
    return None if match is None else SourceLine(match["file"], int(match["line"]), match["name"] or "")


class ObservedWorkers:
    """What a pool uses instead of its spawner. ``loads`` and ``calls`` are the reports so far, in order."""

    def __init__(self) -> None:
        self.loads: list[Reported] = []
        self.calls: list[Called] = []
        self._sockets: list[socket.socket] = []

    async def spawn(
        self, spec: WorkerSpec, environment: Mapping[str, str], outputs: tuple[int, int], connection: int
    ) -> asyncio.subprocess.Process:
        """Starts an observed worker as the pool starts others. Raises OSError."""
        own_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with worker_end:
            own_end.setblocking(False)
            own_end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST)
            worker_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            self._sockets.append(own_end)
            return await asyncio.create_subprocess_exec(
                *worker_command(spec.python, _MODULE),
                str(connection),
                str(os.getpid()),
                cwd="/",
                env={**environment, PROBE: str(worker_end.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                pass_fds=[connection, worker_end.fileno()],
                start_new_session=True,
            )

    def read(self) -> None:
        """Receives what has been reported; what belongs to an answer was sent before the answer."""
        for each in self._sockets:
            # Nothing more has come, or the socket is closed.
            with contextlib.suppress(OSError):
                while data := each.recv(_LARGEST):
                    report = _decode(data)
                    if isinstance(report, Reported):
                        self.loads.append(report)
                    else:
                        self.calls.append(report)

    def close(self) -> None:
        """No more is received."""
        for each in self._sockets:
            each.close()
