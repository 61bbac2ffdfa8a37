import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import gone, is_alive

from modelserver.engine.pools.local_process import LocalProcess
from modelserver.ext.cluster import messages
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.node import agent as agent_module
from modelserver.ext.cluster.node.agent import Agent
from modelserver.ext.cluster.packing import ArchiveSender, Packer
from modelserver.surface.tls.context import Certificate

_LEASE = 30.0


class PlayedServer(asyncio.Protocol):
    """The server's end of an agent's connection."""

    def __init__(self):
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._frames = messages.MessageReader(messages.from_agent_decoder)
        self.send_archive: Callable[[int], None] | None = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        for message in self._frames.feed(data):
            if isinstance(message, messages.WantArchive) and self.send_archive is not None:
                self.send_archive(message.offset)
            else:
                self.messages.put_nowait(message)

    def connection_lost(self, exc):
        self.lost.set_result(None)

    def send(self, message):
        self.transport.write(messages.encode(message))

    async def next(self, *kinds):
        while True:
            message = await asyncio.wait_for(self.messages.get(), 15)
            if isinstance(message, kinds):
                return message


class Stage:
    """A server that is played; the worker's program is a shell script of the test."""

    def __init__(self, hub, folder, monkeypatch):
        self.hub, self.server = hub, PlayedServer()
        self.invitation = hub.invite(lambda: self.server)
        self._folder = folder
        self._monkeypatch = monkeypatch

    def program(self, script):
        path = self._folder / "worker.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    async def run(self, script, python="", *after):
        """An agent in this process that has received such a start, and other messages with it."""
        self._monkeypatch.setattr(sys, "executable", python or str(self.program(script)))
        task = asyncio.create_task(Agent(self.invitation, "n1").run())
        await self.server.next(messages.Present)
        orders = (await self.start(), *after)
        self.server.transport.write(b"".join(map(messages.encode, orders)))
        return task

    async def start(self, lease=_LEASE):
        """A start with a model of one file, which the agent gets on request."""
        model = self._folder / "model"
        model.mkdir(exist_ok=True)
        (model / "h.py").write_text("")
        packed = await Packer().pack(model)
        self.server.send_archive = lambda offset: self.server.send(
            messages.ArchiveTicket(self.hub.invite(lambda: ArchiveSender(packed, offset)))
        )
        worker = self.hub.invite(PlayedServer)
        own, needs = {"SEEN": "1"}, ("", False, "")
        files = packed.digest, packed.size
        return messages.Start(("m", "1"), None, *files, own, "", 1, needs, worker, lease, {})

    async def output_until_end(self):
        got, kinds = [b"", b""], (messages.WorkerOutput, messages.WorkerEnded)
        while isinstance(message := await self.server.next(*kinds), messages.WorkerOutput):
            got[message.is_error] += message.data
        return got[0], got[1], message


@pytest.fixture(params=["plain", "tls"])
async def stage(request, tmp_path, monkeypatch, bound):
    monkeypatch.setattr("modelserver.ext.cluster.node.dial.PAUSES", ())
    monkeypatch.setenv("MODELSERVER_NODE_CACHE", str(tmp_path / "cache"))
    hub = Hub(bound, "127.0.0.1", certificate=Certificate.throwaway([]) if request.param == "tls" else None)
    await hub.open()
    made = Stage(hub, tmp_path, monkeypatch)
    yield made
    hub.close()
    if hasattr(made.server, "transport"):
        made.server.transport.abort()
    await asyncio.sleep(0.02)


plainly = pytest.mark.parametrize("stage", ["plain"], indirect=True)


async def test_worker_is_reported_from_start_to_end(stage):
    task = await stage.run('echo "out $SEEN"; echo err >&2; sleep 0.1; exit 3')
    started = await stage.server.next(messages.WorkerStarted)
    assert (Path(started.model_dir).parent.parent.name, started.pid > 0) == ("cache", True)
    stage.server.send(messages.Alive(7))
    out, errors, ended = await stage.output_until_end()
    assert (out, errors) == (b"out 1\n", b"err\n")
    assert ended == messages.WorkerEnded(3, 0, False)
    await asyncio.wait_for(task, 5)
    await stage.server.lost


@plainly
async def test_killed_worker_is_reported_with_its_signal(stage, monkeypatch):
    monkeypatch.setattr(LocalProcess, "for_memory", True)
    task = await stage.run("kill -9 $$")
    assert (await stage.server.next(messages.WorkerEnded)) == messages.WorkerEnded(-9, 0, True)
    await task


async def test_kill_ends_the_worker(stage):
    """The server's word is enough, whatever the worker does."""
    task = await stage.run("trap '' TERM INT; while :; do sleep 1; done")
    started = await stage.server.next(messages.WorkerStarted)
    # The next of these comes in two seconds.
    assert isinstance(await stage.server.next(messages.Condition), messages.Condition)
    stage.server.send(messages.Recall(1))
    assert await stage.server.next(messages.TakenBack) == messages.TakenBack(0, 1)
    stage.server.send(messages.Kill())
    assert await stage.server.next(messages.WorkerEnded) == messages.WorkerEnded(-9, 0, False)
    await gone(started.pid)
    await task


@plainly
async def test_kill_before_the_start_is_not_forgotten(stage):
    task = await stage.run("sleep 60", "", messages.Kill())
    assert (await stage.server.next(messages.WorkerEnded)).code == -9
    await task


@plainly
async def test_descendants_end_with_the_worker(stage):
    task = await stage.run("setsid sleep 61 & setsid sh -c 'sleep 62; :' & echo $!; sleep 0.2")
    out, _, ended = await stage.output_until_end()
    assert ended.code == 0
    await gone(int(out))
    await task


@plainly
async def test_worker_that_cannot_be_started_is_refused(stage):
    task = await stage.run("", python="/nowhere/python")
    assert "/nowhere/python" in (await stage.server.next(messages.StartRefused)).reason
    await asyncio.wait_for(task, 5)


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, struct.pack("<II", 0xFFFFFFFF, 8), messages.encode(messages.Heard(1)), None]
)
async def test_nonsense_and_the_end_of_the_server_end_the_worker(stage, data):
    task = await stage.run("sleep 60")
    started = await stage.server.next(messages.WorkerStarted)
    stage.server.transport.abort() if data is None else stage.server.transport.write(data)
    await asyncio.wait_for(task, 10)
    await gone(started.pid)


class FakeTime:
    """The clock of an agent, which only its sleeping moves on; ``events`` are what happens meanwhile."""

    def __init__(self, agent, events):
        self.now = agent._received_at
        self.began = self.now
        self._events = sorted(events.items())

    def monotonic(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds
        while self._events and self._events[0][0] <= self.now - self.began:
            self._events.pop(0)[1]()


@plainly
@pytest.mark.parametrize(
    ("lease", "words", "stop", "end"),
    [(None, 0, 0.0, 30.0), (10.0, 0, 0.0, 10.0), (10.0, 3, 0.0, 16.0), (10.0, 0, 60.0, 70.0)],
    ids=["not started", "silent", "words renew it", "stopped itself"],
)
async def test_lease_ends_after_silence_of_server(stage, monkeypatch, lease, words, stop, end):
    agent, ended = Agent(stage.invitation, "n1"), []
    if lease is not None:
        agent._started.set_result(await stage.start(lease))

    def hear():
        agent._received_at = clock.now

    def skip():
        clock.now += stop

    clock = FakeTime(agent, {2.0 * (number + 1): hear for number in range(words)} | {5.0: skip})
    agent._outgoing = SimpleNamespace(transport=SimpleNamespace(abort=lambda: ended.append(clock.now)))
    monkeypatch.setattr(agent_module, "time", clock)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", clock.sleep)
        await agent._keep_lease()

    assert [moment - clock.began for moment in ended] == [pytest.approx(end, abs=agent_module._LOOK)]


@plainly
async def test_a_cancelled_agent_ends_its_worker(stage):
    task = await stage.run("sleep 60")
    started = await stage.server.next(messages.WorkerStarted)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    await gone(started.pid)
    assert (await stage.server.next(messages.WorkerEnded)).code == -9


@plainly
async def test_secrets_are_not_in_the_workers_environment(stage):
    task = await stage.run("tr '\\0' '\\n' < /proc/$$/environ; tr '\\0' ' ' < /proc/$$/cmdline")
    out, _, _ = await stage.output_until_end()
    assert b"MODELSERVER_WORKER=" in out
    for hidden in (stage.invitation.secret, stage.invitation.ticket):
        assert hidden.hex().encode() not in out
        assert hidden not in out
    assert b'secret":' not in out
    await task


@plainly
async def test_flood_of_output_is_slowed(stage, monkeypatch, tmp_path):
    monkeypatch.setattr(agent_module, "_OUTPUT_RATE", 1)
    monkeypatch.setattr(agent_module, "_LAST_WORDS", 0.0)
    task = await stage.run(f"head -c 10000000 /dev/zero; touch {tmp_path}/printed")
    output = await stage.server.next(messages.WorkerOutput)
    stage.server.send(messages.Kill())
    more, _, ended = await stage.output_until_end()
    await task

    assert 0 < len(output.data) + len(more) <= 2 * agent_module._OUTPUT
    assert ended.code == -9
    assert not (tmp_path / "printed").exists()


# -- agents as processes

_AGENT = """
import sys
from modelserver.engine.worker.parent import die_with
sys.executable, agent, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
die_with(parent)
from modelserver.ext.cluster.node.agent import run
run(sys.stdin.readline(), agent)
"""


@pytest.fixture
async def process(stage):
    """An agent's process whose worker has a descendant; the process, the worker's and the descendant's id."""
    script = "setsid sleep 60 & echo $!; sleep 60"
    command = [sys.executable, "-c", _AGENT, str(stage.program(script)), "n1", str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as child:  # noqa: ASYNC220 - for a moment
        child.stdin.write(f"{stage.invitation.text()}\n")
        child.stdin.close()
        await stage.server.next(messages.Present)
        stage.server.send(await stage.start())
        started = await stage.server.next(messages.WorkerStarted)
        yield child, started.pid, int((await stage.server.next(messages.WorkerOutput)).data)
        child.kill()


@plainly
async def test_sigterm_ends_everything_in_order(stage, process):
    child, worker, descendant = process
    child.send_signal(signal.SIGTERM)
    assert (await stage.server.next(messages.WorkerEnded)).code == -9
    await gone(child.pid, worker, descendant)


@plainly
async def test_next_agent_ends_what_a_killed_one_left(stage, process):
    child, _, descendant = process
    child.kill()
    await asyncio.wait_for(stage.server.lost, 5)
    child.wait()
    assert is_alive(descendant)
    stage.server = PlayedServer()
    stage.invitation = stage.hub.invite(lambda: stage.server)
    task = await stage.run("true")
    # Before its own worker starts.
    await stage.server.next(messages.WorkerStarted)
    await gone(descendant)
    await task
