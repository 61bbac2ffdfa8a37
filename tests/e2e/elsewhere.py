"""A server whose workers run as if on other machines: agents as processes, connected over the network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from tests.e2e.serving import ROOT, Home, Server, command_of, free_port, serving, wait_until
from tests.ext.cluster.proxy import Proxy, proxy_to

# Seconds of silence after which a machine is lost.
LOST = 3.0
# Read by agents and workers at their start: a file beside it says through which port they connect to the
# server.
_SITECUSTOMIZE = """
import asyncio, os, socket, sys
from pathlib import Path

here, line = Path(__file__).parent, " ".join(sys.orig_argv)
if "modelserver.ext.cluster.node" in line and (here / "detour").exists():
    os.environ["MODELSERVER_NODE_LOCAL_SOCKET"] = "0"
    direct, detour = map(int, (here / "detour").read_text().split())
    connect, open_connection = socket.create_connection, asyncio.open_connection
    socket.create_connection = lambda address, **more: connect(
        (address[0], detour if address[1] == direct else address[1]), **more
    )
    asyncio.open_connection = lambda host, port, **more: open_connection(
        host, detour if port == direct else port, **more
    )
"""


class Elsewhere(Server):
    """The server, and the processes of its machines. ``variables`` are environment variables of all."""

    def __init__(
        self, folder: Path, model_store: Path, variables: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        self.site = folder / "site"
        self.site.mkdir(parents=True)
        (self.site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        roots = (self.site, ROOT / "app", ROOT / "handlers")
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "MODELSERVER_NODE_CACHE": str(folder / "cache"),
            **(variables or {}),
        }
        self.worker_port = free_port()
        launching = {
            "worker_launcher": "agents",
            "worker_address": f"127.0.0.1:{self.worker_port}",
            "worker_lost_timeout": LOST,
            "job_queue_size": 1000,
        }
        home = Home(folder / "home", environment, for_children=True)
        super().__init__(home, model_store, (), {**launching, **settings})

    def started_again(self) -> Elsewhere:
        self.process.wait(30)
        self._process, self._terminated = None, False
        self.start()
        return self

    def agents(self, name: str | None = None) -> list[psutil.Process]:
        """The agents, those of a model in the order of its workers."""
        children = psutil.Process(self.pid).children()
        agents = [each for each in children if "modelserver.ext.cluster.node" in command_of(each)]
        if name is None:
            return agents
        by_node = {each.cmdline()[3]: each for each in agents}
        return [by_node[w["node"]["name"]] for w in self.describe(name)["workers"] if "node" in w]

    def workers(self) -> list[psutil.Process]:
        if not psutil.pid_exists(self.pid):
            return []
        return [*super().workers(), *(child for agent in self.agents() for child in _children(agent))]

    def pids(self, name: str) -> set[int]:
        """The processes of its workers that are ready."""
        return {worker["pid"] for worker in self.describe(name)["workers"] if worker["status"] == "READY"}

    def wait_replaced(self, name: str, before: set[int], lost: int = 1) -> None:
        """Until so many of these workers are gone, and as many are ready as there were."""
        wait_until(lambda: len(before - self.pids(name)) >= lost, f"{lost} of {name}'s workers are missed")
        wait_until(lambda: len(self.pids(name)) == len(before), f"{name} has {len(before)} workers again")

    @contextlib.contextmanager
    def detour(self) -> Iterator[Proxy]:
        """Agents that start within the block connect through this proxy."""
        path = self.site / "detour"
        with proxy_to(self.worker_port) as proxy:
            path.write_text(f"{self.worker_port} {proxy.port}")
            try:
                yield proxy
            finally:
                path.unlink(missing_ok=True)

    def end_detour(self) -> None:
        (self.site / "detour").unlink()


def store_beside(model_store: Path, folder: Path) -> Path:
    store = folder / "store"
    store.mkdir()
    for archive in model_store.iterdir():
        (store / archive.name).symlink_to(archive)
    return store


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [p for p in process.children() if "modelserver.ext.cluster.node.worker" in command_of(p)]
    return []


@contextlib.contextmanager
def freezing(*processes: psutil.Process) -> Iterator[None]:
    """These processes do nothing within the block."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.resume()


@contextlib.contextmanager
def elsewhere(
    folder: Path, model_store: Path, variables: Mapping[str, str] | None = None, **settings: object
) -> Iterator[Elsewhere]:
    """Such a server, started and stopped; what is left over fails the test."""
    server = Elsewhere(folder, model_store, variables, **settings)
    with serving(server):
        yield server
