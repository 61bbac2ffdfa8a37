"""The real bench: a separate server with the model, and clients in this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from modelserver.tools.commands import message_of
from modelserver.tools.tune.client import LoadSpec, at_rate, closed_loop, post
from modelserver.tools.tune.errors import SettingRefused, TuningError
from modelserver.tools.tune.figure import Figure, LoadRun, summed_up
from modelserver.tools.tune.goal import ModelSetting
from modelserver.tools.tune.own_server import NAME, OwnServer
from modelserver.tools.tune.source import ModelSource

_ROUNDS = 3  # minimum answers per client and measurement, unless that takes too long


@dataclass(frozen=True, slots=True)
class Input:
    """A request body and its content type."""

    name: str
    body: bytes
    content_type: str


class LocalBench:
    """Measures ``source`` on this machine with ``inputs`` in turn, in its own ``folder``; must be closed.

    ``base`` is a configuration file for the server. Raises TuningError if that does not start.
    """

    def __init__(self, source: ModelSource, inputs: Sequence[Input], folder: Path, base: Path | None) -> None:
        self._source = source
        self._inputs = inputs
        self._requests = [post(f"/predictions/{NAME}", i.body, i.content_type) for i in inputs]
        largest = max(len(each.body) for each in inputs)
        self._server = OwnServer(folder / "server", source.store, base=base, largest_body=largest)
        self.description: dict[str, Any] = {}

    def now(self) -> float:
        """The clock of its times, in seconds."""
        return time.monotonic()

    def serve(self, setting: ModelSetting) -> int:
        """Serves the model with this setting; returns the capacity of its queue. Raises TuningError."""
        try:
            self.description = self._server.register(self._source.url, setting)
            for each in self._inputs:
                status, body = self._server.ask(each.body, each.content_type)
                if not 200 <= status < 300:
                    raise SettingRefused(f"{each.name} was answered {status}: {message_of(body)}")
        except OSError as error:
            raise TuningError(f"The measured server no longer responds: {error}") from error
        return int(self.description["jobQueueStatus"]["remainingCapacity"])

    def closed(self, clients: int, seconds: float, settle: float, longest: float) -> Figure:
        """Measures clients that wait for their answers; times in seconds."""
        least = _ROUNDS * clients
        load = LoadSpec(self._requests, self._server.inference, seconds, settle, least, longest)
        return summed_up(run_load(closed_loop(load, clients)), clients=clients)

    def arrivals(self, rate: float, seconds: float, settle: float) -> Figure:
        """Measures independent requests, ``rate`` per second."""
        load = LoadSpec(self._requests, self._server.inference, seconds, settle)
        return summed_up(run_load(at_rate(load, rate)), offered=rate)

    def close(self) -> None:
        self._server.stop()


def run_load(load: Coroutine[Any, Any, LoadRun]) -> LoadRun:
    """Runs a load in a loop of its own.

    An interruption waits until the loop runs, which then ends in good order.
    """

    async def interruptible() -> LoadRun:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return await load

    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    task = interruptible()
    try:
        return uvloop.run(task)
    finally:
        # Neither coroutine has started if there was no loop.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        task.close()
        load.close()
