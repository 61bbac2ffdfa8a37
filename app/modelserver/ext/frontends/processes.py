"""The front ends of a server: starts, watches, replaces and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from typing import Any

import msgspec
import psutil

from modelserver.engine.telemetry.system import worker_memory
from modelserver.engine.wire.arena import Arena
from modelserver.errors import ConfigError
from modelserver.ext.frontends.counts import MAX_SEATS, make_counts
from modelserver.ext.frontends.link import make_pair
from modelserver.ext.frontends.messages import Certified, Close, Hurry, Open, Paths, Setup, Tokens
from modelserver.ext.frontends.server_end import ServerEnd
from modelserver.extension import Endpoints
from modelserver.surface.tls.context import Certificate

_log = logging.getLogger("modelserver.frontend")

# Seconds that a front end may take to start, to confirm that it accepts no more connections, and to end.
START_PATIENCE = 60.0
CLOSE_PATIENCE = 5.0
END_PATIENCE = 2.0
# Connections that may wait to be accepted.
_BACKLOG = 2048
# Failed attempts in a row before the server gives up; only during its own start.
_START_ATTEMPTS = 3
_LONGEST_PAUSE = 5.0
# A front end that ran this long did not fail at its start.
_LONG_LIFE = 10.0


class _Seat:
    """The place of one front end, and the process in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Set when the fleet starts.
        self.keeper: asyncio.Task[None]
        self.process: asyncio.subprocess.Process | None = None
        self.end: ServerEnd | None = None
        self.since, self.ended = 0.0, 0
        # This is done as soon as a process was ready in this seat.
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, message: Open | Close | Hurry | Tokens | Paths | Certified) -> None:
        """Sends a message to the front end, if there is one."""
        if self.end is not None:
            self.end.link.send(message)

    def describe(self, connections: int) -> dict[str, Any]:
        """The process as ``GET /frontends`` shows it."""
        known: dict[str, Any] = {"number": self.number, "state": "starting", "replaced": self.ended}
        process, end = self.process, self.end
        if process is not None and end is not None:
            known |= {
                "pid": process.pid,
                "since": _moment(self.since),
                "memoryUsage": worker_memory(process.pid),
            }
            known |= {"connections": connections, "requests": end.waiting}
            known["state"] = "ready" if end.ready.done() else "starting"
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(process.pid).cpu_times()
                known["cpuSeconds"] = round(times.user + times.system, 2)
        return known

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


class Fleet:
    """Several front-end processes at one listening socket; see :class:`modelserver.extension.Listener`.

    Args:
        endpoints: with the socket of ``inference_address``; :meth:`open` starts to listen on it.
        setup: the configuration of each front end.
    """

    def __init__(self, endpoints: Endpoints, setup: Setup) -> None:
        settings = endpoints.services.settings
        address, count = settings.inference_address, settings.front_ends
        if not 1 < count <= MAX_SEATS:
            raise ValueError(f"{count} front ends")
        self._count = count
        self._listener = endpoints.sockets[address]
        self._setup = setup
        self._endpoints = endpoints
        self._app = endpoints.edge(address)
        self._tokens: Tokens | None = None
        self._paths = Paths(())
        self._counts_file, self._counts = make_counts(count)
        self._seats = [_Seat(number) for number in range(count)]
        self._is_open = False
        self._closing = False

    def start(self) -> None:
        """Starts the processes; they accept no connections yet."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        for seat in self._seats:
            seat.keeper = loop.create_task(self._keep(seat))

    async def open(self) -> None:
        """Waits until all are ready, and lets them accept connections.

        Raises:
            ConfigError: they cannot be started.
            OSError: another process listens on the address.
        """
        await asyncio.gather(*(self._until_ready(seat) for seat in self._seats))
        self._listener.listen(_BACKLOG)
        self._is_open = True
        for seat in self._seats:
            seat.send(Open())
        _log.info("%d front ends take requests: processes %s", self._count, ", ".join(map(str, self.pids)))

    def allow(self, tokens: Tokens) -> None:
        """Only these tokens are valid at the front ends from now on."""
        self._tokens = tokens
        for seat in self._seats:
            seat.send(tokens)

    def add_path(self, path: str) -> None:
        """A model answers at this path, too."""
        self._paths = Paths((*self._paths.paths, path))
        for seat in self._seats:
            seat.send(self._paths)

    def certify(self, certificate: Certificate) -> None:
        """The front ends, new ones too, use this certificate; ignored without TLS."""
        if self._setup.tls is None:
            return
        tls = (certificate.chain, certificate.key, certificate.client_ca)
        self._setup = msgspec.structs.replace(self._setup, tls=tls)
        for seat in self._seats:
            seat.send(Certified(tls))

    def describe(self) -> list[dict[str, Any]]:
        """The process in each place."""
        return [] if self._closing else [seat.describe(self._counts.of(seat.number)) for seat in self._seats]

    @property
    def pids(self) -> list[int]:
        return [seat.process.pid for seat in self._seats if seat.process is not None]

    async def refuse(self) -> None:
        """Returns when no front end accepts connections any more."""
        if self._closing:
            return
        self._closing = True
        self._listener.close()
        ends = [seat.end for seat in self._seats if seat.end is not None]
        for end in ends:
            end.link.send(Close())
        if ends:
            await asyncio.wait([end.closed for end in ends], timeout=CLOSE_PATIENCE)

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for connections to end, aborts the rest and ends the processes."""
        await self.refuse()
        for seat in self._seats:
            if seat.process is None:
                # The keeper waits before it starts the next process.
                seat.keeper.cancel()
        _, left = await asyncio.wait([seat.keeper for seat in self._seats], timeout=grace)
        if left:
            for seat in self._seats:
                seat.send(Hurry())
            _, left = await asyncio.wait(left, timeout=END_PATIENCE)
        if left:
            for seat in self._seats:
                seat.kill()
            await asyncio.wait(left)
        self._counts.close()
        os.close(self._counts_file)

    async def _until_ready(self, seat: _Seat) -> None:
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait([seat.ready, seat.keeper], timeout=START_PATIENCE, return_when=first)
        if not seat.ready.done():
            raise ConfigError(f"The front ends (frontend_processes={self._count}) cannot be started.")

    async def _keep(self, seat: _Seat) -> None:
        """Runs a front end in the seat, one after the other, until the fleet ends."""
        failures = 0
        while not self._closing:
            began = time.monotonic()
            how = await self._live(seat)
            self._counts.leave(seat.number)
            seat.ended += 1
            if self._closing:
                return
            failures = 0 if time.monotonic() - began > _LONG_LIFE else failures + 1
            _log.warning("Front end %d %s; it is replaced", seat.number, how)
            if failures >= _START_ATTEMPTS and not self._is_open:
                return
            await asyncio.sleep(min(_LONGEST_PAUSE, 0.05 * 2**failures) if failures > 1 else 0.0)

    async def _live(self, seat: _Seat) -> str:
        """Runs one front end; returns how it ended."""
        end = ServerEnd(self._endpoints, self._app)
        try:
            process = seat.process = await self._launch(end, seat.number)
            seat.since = time.time()
        except OSError as error:
            return f"could not be started: {error}"
        ending = asyncio.ensure_future(process.wait())
        seat.end = end
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait([end.ready, end.lost], timeout=START_PATIENCE, return_when=first)
            if end.ready.done() and not end.lost.done():
                self._welcome(seat)
                await end.lost
            # The process closed its end of the link: it has ended or is about to.
            await asyncio.wait([ending], timeout=END_PATIENCE)
        finally:
            end.link.abort()
            seat.kill()
            seat.end = seat.process = None
        code = await ending
        return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"

    def _welcome(self, seat: _Seat) -> None:
        if not seat.ready.done():
            seat.ready.set_result(None)
        if self._closing:
            seat.send(Close())
        elif self._is_open:
            seat.send(Open())

    async def _launch(self, end: ServerEnd, number: int) -> asyncio.subprocess.Process:
        own, other = make_pair()
        # A front end runs no user code.
        arena = end.link.arena = Arena.create(trusting=True)
        inherited = [other.fileno(), self._listener.fileno(), self._counts_file]
        if arena is not None:
            inherited.append(arena.descriptor)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "modelserver.ext.frontends",
                str(number),
                str(self._count),
                *map(str, inherited),
                # `-m` searches the current directory first: it must not be writable by others.
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,
            )
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        await asyncio.get_running_loop().create_unix_connection(lambda: end.link, sock=own)
        end.link.send(self._setup)
        if self._tokens is not None:
            end.link.send(self._tokens)
        end.link.send(self._paths)
        return process


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
