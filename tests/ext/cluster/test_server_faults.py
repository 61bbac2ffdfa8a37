"""A server in a process of its own is killed or stopped; its agents and workers are left with themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import free_port
from tests.waiting import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

_LEASE = 2.0
_HANDLER = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)

def handle(data, context):
    return data and [b"x"] * len(data)
"""

# Says its agent's and its worker's pid once the model is loaded, then each answer, and how the worker ended.
_SERVER = f"""
import asyncio, socket, sys
from pathlib import Path
import uvloop
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.processes import ProcessPlacer
from modelserver.surface.tls.throwaway import make_certificate
from modelserver.engine.wire.messages import Loaded, Result
from tests.ext.cluster.conversation import Conversation, predict

async def main(port, folder, handler):
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    hub, placer = Hub(bound, "127.0.0.1", certificate=make_certificate([])), ProcessPlacer()
    await hub.open()
    conversation = Conversation(handler)
    worker = await conversation.start(Cluster(hub, placer, 30.0, {_LEASE}), Path(folder))
    assert isinstance((await conversation.next())[0], Loaded)
    print(placer.placements[0].pids[0], worker.pid, flush=True)
    number = 0
    while not worker.lost.done():
        worker.send(*predict(number, b"x"))
        try:
            message, _ = await asyncio.wait_for(conversation.messages.get(), 1.0)
            print("answer", message.sequence, flush=True)
        except TimeoutError:
            continue
        number += 1
        await asyncio.sleep(0.1)
    print("lost", await worker.wait(), flush=True)
    await placer.close()

uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""


def gone(*pids: int, within: float = 10.0) -> None:
    """Waits for the end of processes."""
    end = time.monotonic() + within
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end, [pid for pid in pids if is_alive(pid)]
        time.sleep(0.05)


class Tree:
    """A server, its agent, its worker, and what that has started in a session of its own."""

    def __init__(self, port: int, folder: Path) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(port), str(folder), _HANDLER],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
            start_new_session=True,
        )
        words = self.line().split()
        self.agent, self.worker = int(words[0]), int(words[1])
        children = Path(f"/proc/{self.worker}/task/{self.worker}/children").read_text().split()
        self.descendant = int(children[0])
        self.pids = (self.server.pid, self.agent, self.worker, self.descendant)

    def line(self) -> str:
        """The next line that the server says."""
        assert self.server.stdout is not None
        return self.server.stdout.readline().decode()

    def signal(self, number: int, *pids: int) -> None:
        """Sends it."""
        for pid in pids:
            os.kill(pid, number)

    def end(self) -> None:
        """Ends what is left."""
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.server.kill()
        self.server.wait()
        assert self.server.stdout is not None
        self.server.stdout.close()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Callable[[], Tree]]:
    port = free_port()
    made: list[Tree] = []

    def start() -> Tree:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Tree(port, folder))
        return made[-1]

    yield start
    for each in made:
        each.end()


def test_a_killed_server_leaves_nothing(tree: Callable[[], Tree]) -> None:
    """Within seconds its agents, workers and their descendants are gone, and another can take its address."""
    first = tree()
    assert first.line().startswith("answer")
    first.server.kill()
    first.server.wait()
    # The agent dies with its parent here, so that the next agent ends what its worker started.
    gone(first.agent, first.worker, within=5)
    second = tree()
    assert second.line().startswith("answer")
    gone(first.descendant, within=5)


def test_a_killed_worker(tree: Callable[[], Tree]) -> None:
    """The server learns how it ended, and its descendants end."""
    made = tree()
    made.signal(signal.SIGKILL, made.worker)
    lines = [made.line()]
    while not lines[-1].startswith("lost"):
        lines.append(made.line())
    assert lines[-1] == "lost was killed by SIGKILL\n"
    gone(made.worker, made.descendant, made.agent)


def test_stops_that_are_shorter_than_the_lease(tree: Callable[[], Tree]) -> None:
    """Of the server, or of the agent: everything goes on as if nothing had been."""
    made = tree()
    for stopped in ((made.server.pid,), (made.agent,)):
        made.signal(signal.SIGSTOP, *stopped)
        time.sleep(_LEASE - 0.7)
        made.signal(signal.SIGCONT, *stopped)
        time.sleep(0.5)
    count = [made.line() for _ in range(10)]
    assert all(line.startswith("answer") for line in count)
    assert is_alive(made.worker)


def test_the_whole_tree_is_stopped_for_longer(tree: Callable[[], Tree]) -> None:
    """A machine that slept goes on where it was."""
    made = tree()
    made.signal(signal.SIGSTOP, *made.pids)
    time.sleep(_LEASE + 0.7)
    made.signal(signal.SIGCONT, *made.pids)
    time.sleep(1.0)
    for _ in range(8):
        assert made.line().startswith("answer")
    assert is_alive(made.worker)


def test_a_server_that_is_stopped_for_longer(tree: Callable[[], Tree]) -> None:
    """Its worker is ended after the lease, with its descendants; back again, the server knows at once."""
    made = tree()
    made.signal(signal.SIGSTOP, made.server.pid)
    began = time.monotonic()
    gone(made.worker, made.descendant, within=_LEASE + 4)
    assert time.monotonic() - began > _LEASE - 1.5
    made.signal(signal.SIGCONT, made.server.pid)
    line = made.line()
    while line.startswith("answer"):
        line = made.line()
    assert line.startswith("lost is out of reach") or "SIGKILL" in line
    gone(made.agent)
