"""A worker on another machine, as its pool sees it: the worker's own connection, and that of its agent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar, cast

from modelserver.engine.pools.process import RemoteProcess
from modelserver.engine.pools.spec import WorkerSpec
from modelserver.engine.wire.arena import ProtocolError
from modelserver.errors import StartFailed
from modelserver.ext.cluster import messages
from modelserver.ext.cluster.placing import NoPlace, Placement

_log = logging.getLogger("modelserver.workers")
_model_log = logging.getLogger("modelserver.model")
Outcome = TypeVar("Outcome")

# The most seconds between two signs of life, and their number within the time after which a node is lost.
_BEAT, _BEATS = 1.0, 4
# Seconds after the end of a lease until it is noticed.
_AFTER = 0.01
# Seconds for the end of a killed worker to be reported.
_KILL_TIME = 3.0
# How much of a new measurement of the round trip counts, where it is longer than before.
_SHARE = 0.1


class SharedPlace:
    """The place of a worker's processes, given back when the last of them has ended."""

    def __init__(self, placement: Placement, processes: int) -> None:
        self._placement = placement
        self._processes = processes

    def leave(self) -> None:
        """One of them has ended."""
        self._processes -= 1
        if not self._processes:
            self._placement.withdraw()


class RemoteWorker(RemoteProcess, asyncio.Protocol):
    """The process of a worker, and the protocol of its agent's connection: both sides keep a lease by
    messages at intervals.

    Args:
        label: of the worker, for the log.
        lost_after: seconds of silence after which the node counts as lost.
        on_archive: called when the agent asks for the model's files from an offset.
        spec: of the worker.

    ``present``, ``meeting`` and ``started`` are set with the agent's messages, or with NoPlace, or, if it is
    the model's fault, StartFailed; ``lost`` when it has ended or is out of reach, with words that follow
    "The worker". ``round_trip`` is how many seconds a message and its answer take.
    """

    def __init__(
        self, label: str, lost_after: float, on_archive: Callable[[int], None], spec: WorkerSpec
    ) -> None:
        super().__init__(label, spec)
        self.round_trip = 0.0
        self._lost_after = lost_after
        self._beat_time = min(_BEAT, lost_after / _BEATS)
        self._loop = asyncio.get_running_loop()
        self._reader = messages.MessageReader(messages.from_agent_decoder)
        self._transport: asyncio.Transport | None = None
        # When the agent last sent something, and when the next beat is due; both by the loop's clock.
        self._received_at = self._due = 0.0
        self._beats = 0
        self._beat_at = 0.0
        self._beat_timer: asyncio.TimerHandle | None = None
        self.place: SharedPlace | None = None
        self.on_archive: Callable[[int], None] | None = on_archive
        self.present: asyncio.Future[messages.Present] = self._loop.create_future()
        self.meeting: asyncio.Future[messages.Meeting] = self._loop.create_future()
        self.started: asyncio.Future[messages.WorkerStarted] = self._loop.create_future()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        for outcome in (self.present, self.meeting, self.started):
            # The exception counts as retrieved, even if nobody waits for it any more.
            outcome.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._received_at = self._due = self._loop.time()
        self._beat()

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        try:
            for message in self._reader.feed(data):
                if isinstance(message, messages.Heard):
                    self._measure(message.number)
                else:
                    self._take(message)
        except ProtocolError as error:
            _log.error("The agent of worker %s sent an invalid message: %s", self.label, error)
            self.lose("is out of reach: its agent cannot be understood")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lose(f"is out of reach: the connection to its node {self.node.name} is lost")

    def send_to_agent(self, message: messages.ToAgent) -> None:
        """Sends a message; dropped if the agent is out of reach."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(messages.encode(message))

    def _disconnect(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def _beat(self) -> None:
        """Sends a sign of life, and notices if the agent sends none."""
        now = self._loop.time()
        # If this loop was late, what the agent sent meanwhile is still to be read.
        self._received_at = min(now, self._received_at + max(0.0, now - self._due))
        if now - self._received_at > self._lost_after:
            silence = f"nothing was heard of its node {self.node.name} for {self._lost_after:g} s"
            _log.error("Worker %s: %s", self.label, silence)
            self.lose(f"is out of reach: {silence}")
            return
        self._beats += 1
        # The time of the server's loop has milliseconds only.
        self._beat_at = time.perf_counter()
        self.send_to_agent(messages.Alive(self._beats))
        # The end of the lease is noticed at once, not at the next beat after it.
        pause = min(self._beat_time, self._received_at + self._lost_after - now + _AFTER)
        self._due = now + pause
        self._beat_timer = self._loop.call_later(pause, self._beat)

    def _measure(self, number: int) -> None:
        if number == self._beats:
            seconds = time.perf_counter() - self._beat_at
            before = self.round_trip
            slower = before and seconds > before
            self.round_trip = before + _SHARE * (seconds - before) if slower else seconds

    # -- as a process

    @property
    def recalls(self) -> bool:
        """Whether its agent can take back batches."""
        return self.started.done() and bool(self.started.result().memory)

    def recall(self, sequence: int) -> None:
        """Asks the agent to take back the batches below ``sequence``, which the worker may not notice."""
        self.send_to_agent(messages.Recall(sequence))

    def kill(self) -> None:
        self.send_to_agent(messages.Kill())
        if self.channel is not None:
            self.channel.close()
        # If the agent is out of reach, nobody reports the worker's end.
        self._loop.call_later(_KILL_TIME, self.lose, "was killed by SIGKILL")

    async def wait(self) -> str:
        """Waits for its end, leaves its place, and returns how it ended."""
        how = await asyncio.shield(self.lost)
        await self.finish()
        if self.place is not None:
            self.place.leave()
        return how

    @property
    def is_alive(self) -> bool:
        """Whether it was heard of a moment ago."""
        return not self.lost.done() and self._loop.time() - self._received_at < 2 * self._beat_time

    # -- messages of the agent

    def _take(self, message: messages.FromAgent) -> None:
        if isinstance(message, messages.WorkerOutput):
            self.printed(message.data, is_error=message.is_error)
        elif isinstance(message, messages.Condition):
            self.node.resident, self.node.gpu = message.resident, message.gpu
            self.node.of_family = max(message.resident, message.of_family)
            self.node.reports += 1
        elif isinstance(message, messages.TakenBack):
            self.recalled(message.started, message.below)
        elif isinstance(message, messages.WantArchive) and self.on_archive is not None:
            self.on_archive(message.offset)
        elif isinstance(message, messages.StartProgress):
            self._log_progress(message)
        else:
            self._take_step(message)

    def _log_progress(self, step: messages.StartProgress) -> None:
        if step.source:
            _model_log.info("%s", step.text, extra={"source": f"{step.source}@{self.node.name}"})
        else:
            _log.info("Worker %s on node %s: %s", self.label, self.node.name, step.text)

    def _take_step(self, message: messages.FromAgent) -> None:
        if isinstance(message, messages.Present):
            self.node.name, self.node.host = message.node, message.host
            self.rename(self.label)
            _settle(self.present, message)
        elif isinstance(message, messages.Meeting):
            _settle(self.meeting, message)
        elif isinstance(message, messages.WorkerStarted):
            self.pid = message.pid
            _settle(self.started, message)
        elif isinstance(message, messages.StartRefused):
            self.lose(message.reason, message.status)
        elif isinstance(message, messages.WorkerEnded):
            self.lose(self.ended(message.code, message.started, message.for_memory))

    def lose(self, how: str, status: int = 0) -> None:
        """The worker has ended, or is out of reach; ``how``: in words that follow "The worker".

        ``status``: what clients get if it cannot start anywhere.
        """
        if self.lost.done():
            return
        self.lost.set_result(how)
        for step in (self.present, self.meeting, self.started):
            if not step.done():
                step.set_exception(StartFailed(how, status) if status else NoPlace(how))
        self._disconnect()
        if self.channel is not None and self.batches_started is None:
            self.channel.close()


def _settle(step: asyncio.Future[Outcome], message: Outcome) -> None:
    if not step.done():
        step.set_result(message)
