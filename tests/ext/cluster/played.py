"""Agents and workers that are played by the test, through the real workers' address."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from modelserver import __version__
from modelserver.engine.demand import Demand
from modelserver.engine.wire.frames import FrameReader, encode, to_worker_decoder
from modelserver.ext.cluster import messages
from modelserver.ext.cluster.greeting import Invitation
from modelserver.ext.cluster.node.dial import dial_streams

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class End:
    def __init__(self, invitation: Invitation, decoder: msgspec.msgpack.Decoder[Any], limit: int) -> None:
        self._invitation = invitation
        self._frames: FrameReader[Any] = FrameReader(decoder, limit)
        self._ahead: list[tuple[Any, bytes]] = []
        self.writer: asyncio.StreamWriter | None = None

    async def dial(self) -> None:
        self.reader, self.writer = await dial_streams(self._invitation)
        _dialled.append(self)

    def send(self, message: msgspec.Struct, bodies: Sequence[bytes] = ()) -> None:
        self.write(b"".join(encode(message, bodies)))

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> tuple[Any, bytes]:
        """The next message; EOFError at the end."""
        while not self._ahead:
            data = await asyncio.wait_for(self.reader.read(1 << 18), 20)
            if not data:
                raise EOFError
            self._ahead += [(message, bytes(tail)) for message, tail in self._frames.feed(data)]
        return self._ahead.pop(0)

    async def ended(self) -> bool:
        try:
            while True:
                await self.receive()
        except (EOFError, ConnectionError):
            return True

    def close(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()


_dialled: list[End] = []


def close_all() -> None:
    while _dialled:
        _dialled.pop().close()


class PlayedAgent(End):
    """An agent; once connected, it answers heartbeats until ``is_mute``."""

    def __init__(self, invitation: Invitation) -> None:
        super().__init__(invitation, messages.to_agent_decoder, messages.MAX_MESSAGE)
        self.is_mute = False
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.start: asyncio.Future[messages.Start] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: asyncio.Task[None] | None = None

    def present(self, version: str = __version__, python: str = PYTHON) -> None:
        self.send(messages.Present(version, python, "n1", "host1"))

    def listen(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        try:
            while True:
                message, _ = await self.receive()
                if isinstance(message, messages.Alive):
                    if not self.is_mute:
                        self.send(messages.Heard(message.number))
                elif isinstance(message, messages.Start):
                    self.start.set_result(message)
                elif isinstance(message, messages.Kill):
                    self.heard.put_nowait(message)
                    self.send(messages.WorkerEnded(-9, 1, False))
                else:
                    self.heard.put_nowait(message)
        except (EOFError, OSError):
            self.gone.set_result(None)

    async def worker(self) -> End:
        start = await asyncio.wait_for(self.start, 10)
        worker = End(start.worker, to_worker_decoder, 1 << 30)
        self.send(messages.WorkerStarted(4711, "/model", ""))
        await worker.dial()
        return worker


class PlayedPlacement:
    """A place that is nowhere."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_withdrawn = False
        self.lacks: dict[str, dict[str, float]] = {}

    def withdraw(self) -> None:
        self.is_withdrawn = True
        if not self.ended.done():
            self.ended.set_result("it was withdrawn")


class PlayedPlacer:
    """Hands the invitations to the test."""

    def __init__(self) -> None:
        self.invitations: asyncio.Queue[Invitation] = asyncio.Queue()
        self.placements: list[PlayedPlacement] = []

    async def place(self, invitations: Sequence[str], demand: Demand, label: str) -> PlayedPlacement:
        for invitation in invitations:
            self.invitations.put_nowait(Invitation.parse(invitation))
        self.placements.append(PlayedPlacement())
        return self.placements[-1]

    async def agent(self) -> PlayedAgent:
        agent = PlayedAgent(await asyncio.wait_for(self.invitations.get(), 10))
        await agent.dial()
        return agent

    def situation(self) -> str:
        return "1 CPU is free of 2"

    async def close(self) -> None:
        """Nothing runs."""
