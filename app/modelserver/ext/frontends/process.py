"""A front end: ``python -m modelserver.ext.frontends SEAT SEATS LINK_FD LISTENER_FD COUNTS_FD [ARENA_FD]``.

It accepts connections, handles HTTP with the server's limits, and passes requests on. It has no models,
queues or user code, and imports neither torch nor FastAPI. It ends when the server says so or is gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import uvloop

from modelserver.engine.telemetry.access import AccessLog
from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.engine.wire.arena import Arena
from modelserver.ext.frontends import messages
from modelserver.ext.frontends.counts import ConnectionCounts
from modelserver.ext.frontends.frontend_end import Forwarder
from modelserver.ext.frontends.link import Link
from modelserver.surface.auth.verifier import Verifier
from modelserver.surface.http.protocol import HttpServer
from modelserver.surface.inference.routes import target_finder
from modelserver.surface.tls.context import Certificate

# Accepts a front end's connections from a listening socket that it shares with the others.
#
# Why one socket and not one for each with ``SO_REUSEPORT``: waiting connections belong to no process, so none
# is lost when a front end ends, regularly or not; no other process can bind the address; and the kernel would
# distribute by the client's port, which is uneven for the few, long-lived connections of clients and load
# balancers. Here a front end accepts one connection at a time, and one that has more than another waits a
# moment first, which keeps them balanced.

_log = logging.getLogger("modelserver.frontend")

# Seconds that others get to accept a connection first, and until the next attempt after an error.
COURTESY = 0.001
_PAUSE = 0.5


class Acceptor:
    """Accepts connections and creates protocols for them.

    Args:
        listener: bound, shared, non-blocking.
        counts: the numbers of connections; ``seat`` is this front end's.
        make: creates the protocol of one connection.
        tls: arguments for TLS, none for connections without.
    """

    def __init__(
        self,
        listener: socket.socket,
        counts: ConnectionCounts,
        seat: int,
        make: Callable[[], asyncio.Protocol],
        tls: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._listener = listener
        self._counts = counts
        self._seat = seat
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # The fewest connections that another had when this one let it go first; -1: it did not.
        self._gave_way_to = -1
        self.connections = 0  # accepted and not ended

    def open(self) -> None:
        self._counts.put(self._seat, self.connections)
        self._watch()

    def close(self) -> None:
        if self.is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._counts.leave(self._seat)

    def left(self) -> None:
        self.connections -= 1
        if not self.is_closed:
            self._counts.put(self._seat, self.connections)

    @property
    def is_closed(self) -> bool:
        return self._listener.fileno() < 0

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._on_waiting)

    def _on_waiting(self) -> None:
        fewest = self._counts.fewest()
        # It waits again if the others have accepted some meanwhile: on a busy machine they need more time.
        if self.connections > fewest > self._gave_way_to:
            self._gave_way_to = fewest
            self._wait(COURTESY)
            return
        self._gave_way_to = -1
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Descriptors may have run out (F38); try again later.
            _log.error("No connection can be accepted: %s", error.strerror or error)
            self._wait(_PAUSE)
            return
        self.connections += 1
        self._counts.put(self._seat, self.connections)
        task = self._loop.create_task(self._take(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, self._watch)

    async def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make, connection, **self._tls)
        except OSError:
            # The client has already disconnected.
            connection.close()
            self.left()


_ENDING_CHECK = 0.02  # seconds


class Frontend:
    """A front end in its process.

    Args:
        listener: the shared listening socket.
        counts: the numbers of connections; ``seat`` is this process's.
        on_end: called when there is nothing more to do.
    """

    def __init__(
        self, listener: socket.socket, counts: ConnectionCounts, seat: int, on_end: Callable[[], None]
    ) -> None:
        self._socket = listener
        self._counts = counts
        self._seat = seat
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self.link: Link[messages.ToFrontend] = Link(messages.to_frontend_decoder, self._on_message, on_end)
        self._forwarder = Forwarder(self.link)
        # Setup, the first message, has what these are made of.
        self._access: AccessLog
        self._server: HttpServer
        self._acceptor: Acceptor
        self._tls: dict[str, Any] = {}
        self._verifier = Verifier(time.time)
        # Those of protocols.
        self._paths: tuple[tuple[str, str], ...] = ()

    def watch(self) -> None:
        """Tells the server of stalls of the event loop from now on."""
        stalled = messages.Stalled
        loop_watch.start(lambda seconds: self.link.send(stalled(seconds)), f"front end {self._seat}")

    def _on_message(self, message: messages.ToFrontend, body: bytes) -> None:
        if self._forwarder.handle(message, body):
            return
        if isinstance(message, messages.Setup):
            self._set_up(message)
        elif isinstance(message, messages.Tokens):
            self._verifier.unpack(message.packed)
        elif isinstance(message, messages.Paths):
            own = rf"(?:{'|'.join(map(re.escape, message.paths))})(?:/.*)?"
            added = (("paths", own),) if message.paths else ()
            self._forwarder.find = target_finder((*self._paths, *added))
        elif isinstance(message, messages.Certified):
            Certificate(*message.tls).renew(self._tls["ssl"])
        elif isinstance(message, messages.Traced):
            self._trace(message)
        elif isinstance(message, messages.Open):
            self._acceptor.open()
        elif isinstance(message, messages.Close):
            self._close()
        elif isinstance(message, messages.Hurry):
            self._hurry()

    def _set_up(self, setup: messages.Setup) -> None:
        AccessLog.turn(on=setup.access)
        access = self._access = AccessLog(
            stamped=setup.stamped, names_failures=setup.names_failures, probes=setup.probes
        )
        access.start(self._loop)
        server = self._server = HttpServer(
            self._forwarder,
            self._forwarder,
            setup.max_body,
            access.counting(self._forwarder.count),
            headers=setup.cors,
            verifier=self._verifier if setup.guarded else None,
            roles=frozenset(setup.guarded),
            ping_token=setup.ping_token,
        )
        intake, outgoing = server.intake, server.outgoing
        intake.limit, outgoing.limit = setup.max_incoming, setup.max_outgoing
        outgoing.give_back = intake.give_back
        self._paths = setup.paths
        self._forwarder.find = target_finder(setup.paths)
        self._forwarder.on_freed = intake.freed
        self._tls = Certificate(*setup.tls).server_arguments() if setup.tls else {}
        self._acceptor = Acceptor(self._socket, self._counts, self._seat, server.connect, self._tls)
        server.on_lost = self._acceptor.left
        server.check_regularly()

    def _trace(self, traced: messages.Traced) -> None:
        exchange = self._forwarder.exchange(traced.number)
        if exchange is not None:
            self._access.traced(exchange.request_id, traced.trace_id)

    def _close(self) -> None:
        """Accepts no more connections; existing ones close after their current request."""
        if self._closing:
            return
        self._closing = True
        self._acceptor.close()
        self._server.shutdown()
        self.link.send(messages.StoppedListening())
        self._end_when_empty()

    def _end_when_empty(self) -> None:
        if self._acceptor.connections:
            self._loop.call_later(_ENDING_CHECK, self._end_when_empty)
            return
        self._access.close()
        self.link.close()

    def _hurry(self) -> None:
        self._close()
        self._server.abort()


class LogToServer(logging.Handler):
    """Sends log records to the server, which writes the log files."""

    def __init__(self, link: Link[messages.ToFrontend]) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        text = text.encode("utf-8", "replace").decode()
        more = getattr(record, "trace_id", ""), getattr(record, "request_ids", [])
        self._link.send(messages.LogRecord(record.name, record.levelno, record.created, text, *more))


async def run(  # noqa: PLR0917 - the arguments of the program
    seat: int, seats: int, link: int, listener: int, counts: int, arena: int | None = None
) -> None:
    """Serves until the server says so or is gone."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    own, shared = socket.socket(fileno=link), socket.socket(fileno=listener)
    own.setblocking(False)
    shared.setblocking(False)
    frontend = Frontend(shared, ConnectionCounts(counts, seats), seat, ended.set)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(LogToServer(frontend.link))
    if arena is not None:
        frontend.link.arena = Arena.adopt(arena)
    await loop.create_unix_connection(lambda: frontend.link, sock=own)
    frontend.link.send(messages.Ready())
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    frontend.watch()
    await ended.wait()
    loop_watch.close()


def main() -> None:
    """The process."""
    uvloop.run(run(*map(int, sys.argv[1:])))
