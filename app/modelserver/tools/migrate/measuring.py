"""Latency and throughput of both servers, with the same request to the same model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelserver.tools.tune.bench import run_load
from modelserver.tools.tune.client import Load, closed_loop
from modelserver.tools.tune.figure import Figure, summed_up

if TYPE_CHECKING:
    from modelserver.tools.migrate.calls import Call
    from modelserver.tools.migrate.servers import Server, Version

_MOST_CLIENTS = 64
_SETTLING = 0.25  # of the measured time, before it


@dataclass(frozen=True, slots=True)
class Measured:
    """A model under a request: one client alone, and enough clients to fill the batches of all workers."""

    model: str
    request: str
    server: str
    alone: Figure
    full: Figure


def measure(server: Server, version: Version, call: Call, seconds: float) -> Measured:
    """Takes twice ``seconds``, and a quarter more."""
    clients = clients_for(version)
    figures = [_figure(server, call, count, seconds) for count in (1, clients)]
    return Measured(version.name, call.name, server.name, *figures)


def clients_for(version: Version) -> int:
    """Two full batches for each worker: one is computed while the next waits."""
    return max(2, min(_MOST_CLIENTS, 2 * version.batch_size * max(1, version.ready)))


def _figure(server: Server, call: Call, clients: int, seconds: float) -> Figure:
    host, port = server.addresses[call.port]
    load = Load([head_and_body(server, call)], port, seconds, _SETTLING * seconds, host=host)
    return summed_up(run_load(closed_loop(load, clients)), clients=clients)


def head_and_body(server: Server, call: Call) -> bytes:
    """The bytes of the request, with the server's token."""
    host, port = server.addresses[call.port]
    lines = [f"{call.method} {call.path} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [f"{name}: {value}" for name, value in server.headers(call) if name.lower() != "host"]
    lines += [f"Content-Length: {len(call.body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + call.body
