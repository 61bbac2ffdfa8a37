"""Machines of a Ray cluster. Ray's driver is a helper process, so that the server outlives Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import modelserver
from modelserver.engine.demand import Demand
from modelserver.ext.cluster import ray_messages as messages
from modelserver.ext.cluster.placing import NoPlace

_log = logging.getLogger("modelserver.workers")

# Seconds: for anything to accept at the address; for the helper to join; of silence after which it hangs; for
# it to end by itself, and to say the last.
_REACH_PATIENCE = 5.0
JOIN_PATIENCE = 60.0
SILENCE = 20.0
_END_PATIENCE = 5.0
_LAST_WORDS = 1.0
# Seconds between attempts to join, which double, at most: where nothing answers, and where a helper has to
# find out; of life after which a helper counts as healthy.
_FIRST_PAUSE = 0.25
_LONGEST_KNOCK = 2.0
_LONGEST_PAUSE = 15.0
_LONG_LIFE = 60.0
# Bytes: the longest message, and what is kept of what the helper prints.
_LONGEST_LINE = 1 << 20
_PRINTED = 1 << 14
_LONGEST = 300
_LAST_PORT = 65535
# A line of a native stack, of which Ray prints many when it ends a process.
_FRAME = re.compile(r"0x[0-9a-f]+|^\*\*\*")


class RayPlacement:
    """The place of a worker's actors. ``placed``: whether Ray has found machines for them."""

    def __init__(self, placer: RayPlacer, request: messages.PlaceActors) -> None:
        self._placer = placer
        self.id = request.id
        self.name = request.name
        self.ranks = request.ranks
        self.placed = False
        self.lacks: Mapping[str, Mapping[str, float]] = {}
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def withdraw(self) -> None:
        self._placer.withdraw(self)

    def end(self, how: str) -> None:
        if not self.ended.done():
            self.ended.set_result(how)


class RayPlacer:
    """Asks the Ray cluster at ``address`` (``HOST:PORT``) for machines.

    ``python`` runs the helper: it has modelserver and the same Ray and Python as the cluster. The helper is
    started for the first place, and again, with growing pauses, whenever it ends. Agents that run do not
    depend on it.
    """

    def __init__(self, address: str, python: str = sys.executable) -> None:
        self._address = address
        self._python = python
        self._server = uuid.uuid4().hex[:12]
        self._count = 0
        self._places: dict[int, RayPlacement] = {}
        # Actors to kill once there is a helper again.
        self._unwanted: set[messages.WithdrawActors] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._joined = False
        # Why Ray cannot be used; empty if it can, or if that is not known yet. ``_known`` is set when it is.
        self._lost = ""
        self._known = asyncio.Event()
        self._state = messages.RayState()
        self._logged: set[str] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._stop = asyncio.Event()

    async def place(self, invitations: Sequence[str], demand: Demand, label: str) -> RayPlacement:
        """Asks for a place; waits for the helper if it is just starting. Raises NoPlace."""
        if self._closing:
            raise NoPlace("the server is stopping")
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        await self._known.wait()
        if self._lost:
            raise NoPlace(self._lost)
        self._count += 1
        name = f"{label}:{self._server}:{self._count}"
        options, spread = options_of(demand), demand.placement == "spread"
        # Several agents are those of one worker's processes, whose places are a group.
        group = ("SPREAD" if spread else "PACK") if len(invitations) > 1 else ""
        if not group:
            options["scheduling_strategy"] = "SPREAD" if spread else "DEFAULT"
        request = messages.PlaceActors(self._count, name, list(invitations), options, group)
        placement = self._places[request.id] = RayPlacement(self, request)
        self._send(request)
        return placement

    def withdraw(self, placement: RayPlacement) -> None:
        """Gives a place back, whether or not it has ended."""
        placement.end("it was withdrawn")
        if self._places.pop(placement.id, None) is not None:
            self._kill(placement)

    def situation(self) -> str:
        """Describes free resources while a place waits for a machine, or why Ray is lost."""
        if self._lost:
            return self._lost
        if all(place.placed for place in self._places.values()):
            return ""
        return "; ".join(filter(None, [self._state.situation, self._state.impossible]))

    async def close(self) -> None:
        """Kills the actors, and ends the helper."""
        for placement in list(self._places.values()):
            placement.withdraw()
        self._closing = True
        if self._keeper is None:
            return
        self._stop.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait([self._keeper], timeout=_END_PATIENCE)
        # The keeper is not cancelled while it starts a helper, which would be left behind.
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await asyncio.wait([self._keeper])

    def _send(self, request: messages.ToHelper) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(messages.encode(request) + b"\n")

    def _kill(self, placement: RayPlacement) -> None:
        withdraw = messages.WithdrawActors(placement.name, placement.ranks)
        if self._joined and self._process is not None:
            self._send(withdraw)
        else:
            self._unwanted.add(withdraw)

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE
        clock = asyncio.get_running_loop().time
        while not self._closing:
            began = clock()
            if reason := await self._unreachable():
                longest = _LONGEST_KNOCK
            else:
                reason, longest = await self._live(), _LONGEST_PAUSE
            self._lose(reason)
            if self._closing:
                return
            pause = _FIRST_PAUSE if clock() - began > _LONG_LIFE else min(2 * pause, longest)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)

    async def _live(self) -> str:
        """Runs one helper; returns how it ended."""
        try:
            process = await self._start()
        except OSError as error:
            return f"ray_python ({self._python}) cannot be started: {error}"
        self._process = process
        printed = asyncio.create_task(_last_printed(process))
        try:
            ended = "" if self._closing else await self._listen(process)
            return ended or await self._end_of(process, printed)
        finally:
            self._process = None
            await _end(process, printed)

    async def _unreachable(self) -> str:
        host, _, port = self._address.rpartition(":")
        if not host or "/" in host or not port.isdecimal() or int(port) > _LAST_PORT:
            return f"ray_address={self._address} is not HOST:PORT, as of a cluster's GCS (usually port 6379)"
        try:
            _, writer = await asyncio.wait_for(
                asyncio.open_connection(host.strip("[]"), int(port)), _REACH_PATIENCE
            )
        except (OSError, UnicodeError, asyncio.TimeoutError) as error:
            reason = getattr(error, "strerror", None) or str(error) or f"no answer in {_REACH_PATIENCE:g} s"
            return f"no Ray cluster answers at {self._address}: {reason}"
        writer.close()
        return ""

    async def _start(self) -> asyncio.subprocess.Process:
        module = "modelserver.ext.cluster.ray_helper"
        command = [self._python, "-m", module, self._address, str(os.getpid())]
        return await asyncio.create_subprocess_exec(
            *command,
            # `-m` searches the current directory first: it must not be writable by others.
            cwd="/",
            env=_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,
        )

    async def _listen(self, process: asyncio.subprocess.Process) -> str:
        """Takes the helper's messages until it ends; returns why it is not wanted any more, if so."""
        assert process.stdout is not None  # noqa: S101 - asked for above
        while True:
            patience = SILENCE if self._joined else JOIN_PATIENCE
            try:
                line = await asyncio.wait_for(process.stdout.readline(), patience)
                if not line:
                    return ""
                message = messages.decode_from_helper(line)
            except asyncio.TimeoutError:
                doing = "said nothing" if self._joined else "could not join"
                return f"Ray at {self._address} hangs: the helper {doing} within {patience:g} s"
            except (ValueError, msgspec.DecodeError) as error:
                return f"the helper that talks with Ray said what cannot be read: {error}"
            if isinstance(message, messages.ClusterRefused):
                return message.reason
            if isinstance(message, messages.ClusterJoined) and message.modelserver != modelserver.__version__:
                return (
                    f"ray_python ({self._python}) has modelserver {message.modelserver}, "
                    f"the server is {modelserver.__version__}"
                )
            self._take(message)

    def _take(self, message: messages.FromHelper) -> None:
        if isinstance(message, messages.ClusterJoined):
            self._join(message)
        elif isinstance(message, messages.RayState):
            self._look_at(message)
        elif isinstance(message, messages.ActorsPlaced) and message.id in self._places:
            self._places[message.id].placed = True
        elif isinstance(message, messages.ActorEnded) and message.id in self._places:
            place = self._places[message.id]
            if not message.left:
                del self._places[message.id]
            place.end(f"its place on Ray is gone: {message.how}")

    def _join(self, joined: messages.ClusterJoined) -> None:
        _log.info("Ray %s at %s can be used: %d nodes", joined.ray, self._address, joined.nodes)
        self._joined = True
        self._logged.clear()
        self._lost = ""
        self._known.set()
        for withdraw in self._unwanted:
            self._send(withdraw)
        self._unwanted.clear()
        for placement in self._places.values():
            self._send(messages.WatchActors(placement.id, placement.name, placement.ranks))

    def _look_at(self, state: messages.RayState) -> None:
        if state.lost and not self._lost:
            self._lost = f"Ray cannot be reached: {state.lost}"
            self._log_once(self._lost)
            self._give_up_waiting(self._lost)
        elif self._lost and not state.lost:
            _log.info("Ray at %s can be reached again", self._address)
            self._logged.clear()
            self._lost = ""
        if state.impossible and state.impossible != self._state.impossible:
            _log.warning("Ray: %s; waiting for such a node", state.impossible)
        self._state = state
        for id_, place in self._places.items():
            place.lacks = state.lacks.get(id_, {})

    def _lose(self, how: str) -> None:
        """The helper has ended, or there was none; after one that had joined, the next is waited for."""
        had_joined, self._joined = self._joined, False
        self._state = messages.RayState()
        if self._closing:
            return
        if had_joined and self._lost:
            # The loss of Ray is logged already; its driver ended with it.
            return
        self._log_once(how)
        if not had_joined:
            self._lost = how
        if self._lost:
            self._known.set()
        else:
            self._known.clear()
        self._give_up_waiting(how)

    def _give_up_waiting(self, how: str) -> None:
        """Ends the places without a machine; agents that run go on."""
        for placement in [place for place in self._places.values() if not place.placed]:
            del self._places[placement.id]
            self._kill(placement)
            placement.end(how)

    def _log_once(self, how: str) -> None:
        if how not in self._logged:
            self._logged.add(how)
            _log.error("No machine can be had for workers, and workers that run go on: %s; trying again", how)

    async def _end_of(self, process: asyncio.subprocess.Process, printed: asyncio.Task[str]) -> str:
        """How the helper ended, with the last that it printed."""
        await asyncio.wait([asyncio.ensure_future(process.wait()), printed], timeout=_LAST_WORDS)
        last = f": {printed.result()}" if printed.done() and printed.result() else ""
        code = process.returncode
        return f"the helper that talks with Ray (ray_python {self._python}) ended with {code}{last}"


def options_of(demand: Demand) -> dict[str, Any]:
    """The options of an actor, in Ray's words, except how it is placed among others."""
    options: dict[str, Any] = {"num_cpus": demand.num_cpus, "num_gpus": demand.num_gpus}
    if demand.memory:
        options["memory"] = demand.memory
    if demand.custom:
        options["resources"] = dict(demand.custom)
    if demand.label_selector:
        options["label_selector"] = dict(demand.label_selector)
    return options


def _environment(server: Mapping[str, str]) -> dict[str, str]:
    """The server's environment without its own settings, some of which are secret."""
    own = ("TS_", "MODELSERVER_")
    environment = {name: value for name, value in server.items() if not name.startswith(own)}
    return {"RAY_USAGE_STATS_ENABLED": "0", **environment}


async def _last_printed(process: asyncio.subprocess.Process) -> str:
    """The last line of the helper's standard error."""
    assert process.stderr is not None  # noqa: S101 - asked for above
    tail = b""
    while piece := await process.stderr.read(_PRINTED):
        tail = (tail + piece)[-_PRINTED:]
    lines = [line.strip() for line in tail.decode(errors="replace").split("\n")]
    printed = [line for line in lines if line and not _FRAME.search(line)]
    return printed[-1][:_LONGEST] if printed else ""


async def _end(process: asyncio.subprocess.Process, printed: asyncio.Task[str]) -> None:
    """Kills it, and reads its pipes to the end, without which they would stay open."""
    assert process.stdin is not None  # noqa: S101 - as above
    assert process.stdout is not None  # noqa: S101 - as above
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.stdin.close()
    rest = asyncio.ensure_future(process.stdout.read())
    await asyncio.wait([rest, printed], timeout=_LAST_WORDS)
    for reading in (rest, printed):
        reading.cancel()
    await process.wait()
