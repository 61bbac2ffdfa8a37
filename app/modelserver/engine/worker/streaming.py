"""Sends parts of answers to the server while the handler is running (reference 6.6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modelserver.engine.wire.messages import Answer, Parts
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.work import Encoded, Work
from modelserver_handlers.context import BatchState
from modelserver_handlers.streaming import ENDED, ClientsGone

if TYPE_CHECKING:
    import asyncio


# Bytes that one call may send before the server confirms that clients have read them.
WINDOW = 1 << 20
# Larger parts are encoded, which checks their size.
_SMALL = 1 << 12
# For a client that has disconnected; never sent to it.
CLIENT_GONE = (Answer(0, 499, failed=True), b"")


def unique_id(request_id: str, sequence: int, taken: Collection[str]) -> str:
    """A request's id, made unique: clients choose ids, and instances of a request share one."""
    return f"{request_id}-{sequence}" if request_id in taken else request_id


@dataclass(slots=True, eq=False)
class CallStream:
    """The parts of one call of the handler; ``context._ms_state.stream`` while it runs.

    Args:
        places: the batch and row at each position of the call.
        state: of the call.
        encode: encodes a part of a row's answer: (batch, row, part, position, state).
        outlet: sends the parts.
        look: checks whether clients have disconnected.
        pause: waits until the server allows more; None if that would block others, too.
        gate: without ``pause``, open while the server allows more.
    """

    places: Sequence[tuple[Work, int]]
    state: BatchState
    encode: Callable[[Work, int, Any, int, BatchState], Encoded]
    outlet: ServerChannel
    look: Callable[[], None]
    pause: Callable[[], None] | None
    gate: asyncio.Event | None = None
    _sent: int = 0
    _open: bool = True
    _threads: int = field(default_factory=threading.active_count)

    def send(self, parts: Mapping[int, Any]) -> None:
        """Sends a part to each of these positions; ignored after the end of the call.

        Raises ClientsGone if all clients have disconnected, and the call has no threads of its own.
        """
        if not self._open:
            return
        self.look()
        ready: dict[Work, list[tuple[int, Answer, bytes]]] = {}
        for position, part in parts.items():
            batch, row = self.places[position]
            if row in batch.cancelled or position in self.state.rejections:
                continue
            answer, content = self.encode(batch, row, part, position, self.state)
            if answer.failed:
                self.state.reject(position, content.decode(), answer.status)
                continue
            if row not in batch.started:
                batch.started |= {row}
            ready.setdefault(batch, []).append((row, answer, content))
        for batch, items in ready.items():
            self._write(batch.sequence, items)
        nobody_waits = all(row in batch.cancelled for batch, row in self.places)
        if nobody_waits and threading.active_count() <= self._threads:
            raise ClientsGone

    @staticmethod
    def send_together(parts: Sequence[tuple[CallStream, bytes]]) -> None:
        """Sends each part, which is not the first, to the only request of its call, in one message for all.

        That costs little for a part: each token of a language model may be one.
        """
        sequences, contents = list[int](), list[bytes]()
        for stream, part in parts:
            (batch, row), size = stream.places[0], len(part)
            if not stream._open or row in batch.cancelled:
                continue
            if row or size > _SMALL or stream._sent + size >= WINDOW or stream.state.rejections:
                stream.send({0: part})
            else:
                stream._sent += size
                sequences.append(batch.sequence)
                contents.append(part)
        if contents:
            answers = [Answer(len(content)) for content in contents]
            parts[0][0].outlet.send(Parts(sequences, [0] * len(contents), answers), contents)

    def _write(self, sequence: int, items: Sequence[tuple[int, Answer, bytes]]) -> None:
        rows, answers, contents = zip(*items, strict=True)
        self._sent += sum(map(len, contents))
        wait = self._sent >= WINDOW and (self.pause is not None or self.gate is not None)
        self.outlet.send(Parts([sequence] * len(rows), list(rows), list(answers), wait), contents)
        if wait:
            self._sent = 0
        if wait and self.pause is not None:
            self.pause()
            self.look()
        elif wait and self.gate is not None:
            self.gate.clear()

    def is_cancelled(self, idx: int) -> bool:
        """Whether the client at this position has disconnected; IndexError outside the batch."""
        self.look()
        batch, row = self.places[idx]
        return row in batch.cancelled

    def close(self) -> None:
        """The call is over; breaks the reference cycle, so that bodies are freed at once."""
        self._open = False
        if self.state.stream is self:
            self.state.stream = ENDED
