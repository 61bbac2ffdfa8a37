from __future__ import annotations

import asyncio
import itertools
import logging
import os
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from tests.ext.cluster.conversation import Conversation, predict
from tests.ext.cluster.loops import on_loop
from tests.ext.cluster.played import End, PlayedAgent, PlayedPlacer, close_all
from tests.ext.cluster.proxy import TO_NODE, TO_SERVER, Proxy, proxy_to
from tests.waiting import gone

from modelserver.engine.wire.cluster import (
    MAX_MESSAGE,
    Condition,
    Ended,
    Output,
    Progress,
    Recall,
    Refused,
    Started,
)
from modelserver.engine.wire.frames import encode, to_worker_decoder
from modelserver.engine.wire.messages import Answer, Loaded, Ping, Pong, Recalled, Result, Stop
from modelserver.errors import StartFailed
from modelserver.ext.cluster import hub as hub_module
from modelserver.ext.cluster import remote as remote_module
from modelserver.ext.cluster import starting as starting_module
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.processes import ProcessPlacer
from modelserver.surface.tls.throwaway import make_certificate

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from modelserver.ext.cluster.remote import RemoteWorker

_LEASE = 0.8


class Stage:
    """A server with agents that are played, by the proxies ``way`` (of agents) and ``data`` (of workers)."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.placer = PlayedPlacer()
        self.cluster = Cluster(hub, self.placer, placement_timeout=20.0, lost_after=_LEASE)
        self.hub = hub
        self.folder = folder
        self.conversation: Conversation
        self.starting: asyncio.Task[RemoteWorker]

    async def placed(self) -> PlayedAgent:
        """A start has begun, and its agent is connected."""
        self.conversation = Conversation()
        self.starting = asyncio.create_task(self.conversation.start(self.cluster, self.folder))
        return await self.placer.agent()

    async def started(self) -> tuple[RemoteWorker, PlayedAgent, End]:
        """A worker is connected."""
        agent = await self.placed()
        agent.present()
        agent.listen()
        end = await agent.worker()
        return await self.starting, agent, end

    async def refusal(self) -> str:
        """Why the start has failed; by then its place has been given back, and its invitations are void."""
        with pytest.raises(NoPlace) as refused:
            await asyncio.wait_for(self.starting, 15)
        assert self.placer.placements[-1].is_withdrawn
        assert not self.hub._expected
        return str(refused.value)


@pytest.fixture(params=["plain", "tls"])
def stage(
    request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop, bound: socket.socket, tmp_path: Path
) -> Iterator[Stage]:
    certificate = make_certificate([]) if request.param == "tls" else None
    made: list[Stage] = []

    async def make() -> None:
        hub = Hub(bound, "127.0.0.1", certificate=certificate)
        await hub.open()
        made.append(Stage(hub, tmp_path))

    async def unmake() -> None:
        made[0].hub.close()
        close_all()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    loop.run_until_complete(make())
    yield made[0]
    loop.run_until_complete(unmake())


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are played dial once."""
    monkeypatch.setattr("modelserver.ext.cluster.node.dial.PAUSES", ())


on_uvloop = pytest.mark.parametrize("loop", [uvloop.new_event_loop], indirect=True)
plainly = pytest.mark.parametrize("stage", ["plain"], indirect=True)


@on_loop
async def test_frames_pass_in_both_directions(stage: Stage) -> None:
    """Small and large batches arrive, whole, and so do their answers, however they are cut."""
    worker, agent, end = await stage.started()
    loading, _ = await end.hear()
    assert loading.model_name == "m"
    end.say(Loaded(False, 0.1))
    assert isinstance((await stage.conversation.next())[0], Loaded)
    for number, size in enumerate((1, 16_384, 70_000, 3_000_000)):
        body = os.urandom(size)
        worker.send(*predict(number, body))
        message, tail = await end.hear()
        assert (message.sequence, tail) == (number, body)
        end.say(Result(number, [Answer(size)], 0.0), [body])
        message, tail = await stage.conversation.next()
        assert (message.sequence, tail) == (number, body)
    frame = b"".join(encode(Pong()))
    for position in range(len(frame)):
        end.write(frame[position : position + 1])
        await asyncio.sleep(0)
    assert await stage.conversation.next() == (Pong(), b"")
    worker.send(Ping())
    assert await end.hear() == (Ping(), b"")
    assert (worker.pid, worker.pids, worker.recalls) == (4711, [], False)
    agent.say(Ended(3, 4, False))
    end.close()
    assert await worker.wait() == "exited with status 3"
    assert worker.begun == 4
    assert await stage.conversation.lost is None
    assert stage.placer.placements[0].is_withdrawn
    agent.close()


@plainly
@on_loop
async def test_what_an_agent_tells(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Its machine's condition, the worker's output and what was taken back reach their places."""
    caplog.set_level(logging.INFO)
    worker, agent, end = await stage.started()
    agent.say(Condition(5, "GPU"))
    agent.say(Progress("packages are installed"))
    agent.say(Output(False, b"a lin"))
    agent.say(Output(False, b"e\nno end"))
    agent.say(Recalled(2, 3))
    assert await stage.conversation.next() == (Recalled(2, 3), b"")
    worker.recall(9)
    assert await agent.heard.get() == Recall(9)
    assert (worker.node.resident, worker.node.gpu) == (5, "GPU")
    assert "packages are installed" in caplog.text
    assert worker.is_alive
    assert 0 < worker.round_trip < 1
    worker.kill()
    assert await asyncio.wait_for(worker.wait(), 10) == "was killed by SIGKILL"
    assert worker.begun == 1
    assert worker.last_output() == "a line\nno end"
    assert await end.ended()
    agent.close()


@on_loop
async def test_a_machine_of_another_version(stage: Stage) -> None:
    """It is refused in words that name both versions, and nothing is started there."""
    agent = await stage.placed()
    agent.present(version="0.0.1")
    agent.listen()
    said = await stage.refusal()
    assert "node n1 (host1) has modelserver 0.0.1 and Python" in said
    await agent.gone
    assert not agent.start.done()
    agent = await asyncio.wait_for(_again(stage, python="2.7"), 5)
    assert "Python 2.7" in await stage.refusal()
    agent.close()


async def _again(stage: Stage, **present: str) -> PlayedAgent:
    stage.folder = stage.folder / "again"
    stage.folder.mkdir()
    agent = await stage.placed()
    agent.present(**present)
    return agent


@plainly
@on_loop
async def test_an_agent_that_refuses(stage: Stage) -> None:
    """Its words are those of the failed start."""
    agent = await stage.placed()
    agent.present()
    agent.listen()
    await agent.start
    agent.say(Refused("there is no room for 5 GB of files"))
    assert await stage.refusal() == "there is no room for 5 GB of files"
    await agent.gone


@plainly
@on_loop
async def test_packages_that_cannot_be_installed(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """That is the model's fault, and said so to clients; what pip printed is in the model's log."""
    caplog.set_level(logging.INFO)
    agent = await stage.placed()
    agent.present()
    agent.say(Progress("ERROR: No matching distribution found", "m_1.0-pip"))
    agent.say(Refused("Custom pip package installation failed", 400))
    with pytest.raises(StartFailed, match=r"^Custom pip package") as failed:
        await asyncio.wait_for(stage.starting, 15)
    (line,) = (record for record in caplog.records if record.name == "modelserver.model")

    assert (failed.value.status, failed.value.type) == (400, "ModelException")
    assert (line.getMessage(), line.__dict__["source"]) == (
        "ERROR: No matching distribution found",
        "m_1.0-pip@n1",
    )


@plainly
@on_loop
async def test_a_worker_that_never_connects(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for any longer than a start takes; its agent is told to end it."""
    monkeypatch.setattr(starting_module, "CONNECT_TIME", 0.2)
    agent = await stage.placed()
    agent.present()
    agent.listen()
    start = await agent.start
    agent.say(Started(1, "/m", ""))
    assert await stage.refusal() == "its process did not connect within 0.2 s"
    assert await agent.heard.get() is not None
    late = End(start.worker, None, 1)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        await late.dial()


@plainly
@on_loop
async def test_a_worker_of_a_failed_start(stage: Stage) -> None:
    """If it has connected already, its connection is closed, and means nothing for the next one."""
    agent = await stage.placed()
    agent.present()
    agent.listen()
    start = await agent.start
    end = End(start.worker, to_worker_decoder, 1 << 20)
    await end.dial()
    agent.say(Refused("it cannot be watched"))
    assert await stage.refusal() == "it cannot be watched"
    assert await end.ended()


@plainly
@on_loop
async def test_a_place_without_an_agent(stage: Stage) -> None:
    """The situation among the machines is part of the words; a place that is gone ends the wait."""
    stage.cluster = Cluster(stage.hub, stage.placer, placement_timeout=0.1, lost_after=_LEASE)
    stage.conversation = Conversation()
    stage.starting = asyncio.create_task(stage.conversation.start(stage.cluster, stage.folder))
    assert await stage.refusal() == "no machine was found within 0.1 s. 1 CPU is free of 2"
    stage.cluster = Cluster(stage.hub, stage.placer, placement_timeout=20.0, lost_after=_LEASE)
    stage.folder = stage.folder / "again"
    stage.folder.mkdir()
    stage.starting = asyncio.create_task(stage.conversation.start(stage.cluster, stage.folder))
    while len(stage.placer.placements) < 2:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    stage.placer.placements[-1].ended.set_result("its node was turned off")
    assert (await stage.refusal()).startswith("its node was turned off")


@on_uvloop
@plainly
@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 64,
        struct.pack("<II", 0xFFFFFFFF, 8),
        struct.pack("<II", MAX_MESSAGE + 1, 8),
        b"".join(encode(Recall(1))),
        struct.pack("<II", 8, 9) + bytes(8),
    ],
    ids=["garbage", "four gigabytes", "over the limit", "the server's", "no head"],
)
@pytest.mark.parametrize("is_started", [True, False])
@on_loop
async def test_an_agent_that_speaks_nonsense(stage: Stage, said: bytes, is_started: bool) -> None:
    """Whoever has proven itself and cannot be understood is given up at once, with its worker."""
    if is_started:
        worker, agent, end = await stage.started()
        agent.write(said)
        how = await asyncio.wait_for(worker.wait(), 5)
        assert how == "is out of reach: its agent cannot be understood"
        assert await end.ended()
    else:
        agent = await stage.placed()
        agent.listen()
        agent.write(said)
        assert "cannot be understood" in await stage.refusal()
    await asyncio.wait_for(agent.gone, 5)


@pytest.mark.parametrize("size", [(1 << 26) + 1, 0xFFFFFFFF])
@on_loop
async def test_a_worker_that_announces_too_much(stage: Stage, size: int) -> None:
    """Its connection is closed before anything of it is kept."""
    worker, agent, end = await stage.started()
    end.write(struct.pack("<II", size, 8))
    reason = await asyncio.wait_for(stage.conversation.lost, 5)
    assert reason is not None
    assert f"no frame: {size} bytes announced" in reason
    assert await end.ended()
    assert worker.is_alive
    worker.kill()
    await worker.wait()
    agent.close()


@plainly
@on_loop
async def test_a_lost_worker_is_no_invalid_message(stage: Stage) -> None:
    """A connection that a worker's machine resets is lost without a reason; its agent tells the rest."""
    worker, agent, end = await stage.started()
    end.close()
    assert await asyncio.wait_for(stage.conversation.lost, 5) is None
    assert not worker.lost.done()
    agent.say(Ended(-11, 2, False))
    assert await worker.wait() == "was killed by SIGSEGV"
    agent.close()


@on_loop
async def test_a_lost_agent_takes_its_worker_along(stage: Stage) -> None:
    """Without its agent a worker is out of reach, even if its own connection lives."""
    worker, agent, end = await stage.started()
    agent.close()
    how = await asyncio.wait_for(worker.wait(), 5)
    assert how == "is out of reach: the connection to its node n1 is lost"
    assert worker.begun is None
    assert await end.ended()


@on_uvloop
@plainly
@on_loop
async def test_a_silent_agent_is_given_up(stage: Stage) -> None:
    """After the time of the lease, not before; noise on the worker's connection does not count."""
    worker, agent, end = await stage.started()
    agent.is_mute = True
    began = time.monotonic()
    how = await asyncio.wait_for(worker.wait(), 10)
    assert how == f"is out of reach: nothing was heard of its node n1 for {_LEASE:g} s"
    assert time.monotonic() - began >= 0.6 * _LEASE
    await agent.gone
    assert await end.ended()


@plainly
@on_loop
async def test_the_end_of_a_lease_is_noticed_at_once(stage: Stage) -> None:
    """Not only when the next sign of life is due."""
    worker, agent, _ = await stage.started()
    beats = worker._beats
    while worker._beats == beats or worker._heard <= worker._due - worker._beat_time:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    # It has just been heard of, in answer to a beat.
    agent.is_mute = True
    await asyncio.wait_for(asyncio.shield(worker.lost), 10)

    assert asyncio.get_running_loop().time() - worker._heard < _LEASE + 0.5 * worker._beat_time
    agent.close()


@pytest.mark.slow
@on_uvloop
@plainly
@on_loop
async def test_a_server_that_was_stopped_asks_before_it_gives_up(stage: Stage) -> None:
    """The time that the server itself did not run is no silence of its nodes."""
    worker, agent, _ = await stage.started()
    time.sleep(1.5 * _LEASE)  # noqa: ASYNC251 - as if it had been stopped
    await asyncio.sleep(0.4 * _LEASE)
    assert not worker.lost.done()
    assert worker.is_alive
    agent.is_mute = True
    # What was not silence then does not lengthen the lease later.
    await asyncio.wait_for(asyncio.shield(worker.lost), 2 * _LEASE)
    agent.close()


@plainly
@on_loop
async def test_a_killed_worker_out_of_reach(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can report its end, it counts as killed after a while."""
    monkeypatch.setattr(remote_module, "_KILL_TIME", 0.1)
    worker, agent, _ = await stage.started()
    monkeypatch.setattr(agent, "say", lambda message: None)
    worker.kill()
    assert await asyncio.wait_for(worker.wait(), 5) == "was killed by SIGKILL"
    assert worker.begun is None
    agent.close()


@pytest.mark.slow
@on_uvloop
@plainly
@on_loop
async def test_a_flood_of_output(stage: Stage) -> None:
    """200 MB of lines cost the server little time and no memory; the last lines are kept."""
    worker, agent, _ = await stage.started()
    piece = b"x" * 79 + b"\n"
    flood = Output(False, piece * 800)
    data = b"".join(encode(flood))
    before = time.thread_time()
    # The first part may be logged.
    for _ in range(200_000_000 // len(data)):
        agent.write(data)
        assert agent.writer is not None
        await agent.writer.drain()
    agent.say(Output(False, b"the last line\n"))
    agent.say(Ended(0, 1, False))
    await asyncio.wait_for(worker.wait(), 60)
    assert worker.last_output(1).startswith("[") or worker.last_output(1) == "the last line"
    assert "x" * 79 in worker.last_output(3)
    # Of both sides, and of the log.
    assert time.thread_time() - before < 5
    agent.close()


# -- a network that stalls, between real agents and workers


class Far:
    """Real agents and workers behind a network: agents come by ``agents``, workers by ``data``."""

    def __init__(self, hub: Hub, agents: Proxy, data: Proxy, lease: float) -> None:
        self.agents, self.data = agents, data
        self.placer = ProcessPlacer()
        self.cluster = Cluster(hub, self.placer, placement_timeout=30.0, lost_after=lease)

    def both(self, do: str, *arguments: str) -> None:
        """Stalls, resumes or cuts the whole network."""
        for proxy in (self.agents, self.data):
            getattr(proxy, do)(*arguments)


@pytest.fixture
def far(
    loop: asyncio.AbstractEventLoop, bound: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Far]:
    hub = Hub(bound, "127.0.0.1", certificate=make_certificate([]))
    loop.run_until_complete(hub.open())
    with proxy_to(hub.port) as agents, proxy_to(hub.port) as data:
        invite, turns = hub_module.invite, itertools.cycle((agents, data))
        monkeypatch.setattr(
            hub_module, "invite", lambda host, _, **more: invite(host, next(turns).port, **more)
        )
        made = Far(hub, agents, data, 2.0)
        yield made

        async def unmake() -> None:
            await made.placer.close()
            hub.close()

        loop.run_until_complete(unmake())


async def loaded(far: Far, folder: Path, **load: Any) -> Conversation:
    """A worker on a far machine that has its model."""
    conversation = Conversation(**load)
    await conversation.start(far.cluster, folder)
    assert isinstance((await conversation.next())[0], Loaded)
    return conversation


async def answers(conversation: Conversation, number: int, size: int = 10) -> None:
    """A batch is answered."""
    body = os.urandom(size)
    conversation.worker.send(*predict(number, body))
    message, tail = await conversation.next()
    assert (message.sequence, tail) == (number, body * 2)


@pytest.mark.slow
@on_uvloop
@pytest.mark.parametrize("ways", [(), (TO_SERVER,)], ids=["both", "to server"])
@on_loop
async def test_a_network_that_stalls_for_less_than_the_lease(
    far: Far, tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """Nothing happens: what waited is delivered, and the worker serves on."""
    conversation = await loaded(far, tmp_path)
    far.both("stall", *ways)
    body = os.urandom(5)
    conversation.worker.send(*predict(0, body))
    await asyncio.sleep(1.0)
    far.both("resume")
    assert (await conversation.next())[1] == body * 2
    await answers(conversation, 1, 2_000_000)
    conversation.worker.send(Stop())
    assert await asyncio.wait_for(conversation.worker.wait(), 10) == "exited with status 0"


@pytest.mark.slow
@on_uvloop
@pytest.mark.parametrize("ways", [(TO_SERVER,), (TO_NODE,)], ids=["to server", "to node"])
@on_loop
async def test_a_network_that_stalls_for_longer(far: Far, tmp_path: Path, ways: tuple[str, ...]) -> None:
    """Both sides give each other up after the lease, whichever direction it is; nothing comes back later."""
    conversation = await loaded(far, tmp_path)
    worker, agent = conversation.worker, far.placer.placements[0].pids[0]
    far.both("stall", *ways)
    began = time.monotonic()
    how = await asyncio.wait_for(worker.wait(), 8)
    assert "is out of reach: nothing was heard of its node process-1 for 2 s" in how or (
        ways == (TO_NODE,) and "out of reach" in how
    )
    assert time.monotonic() - began > 1
    await gone(worker.pid, agent)
    far.both("resume")
    await asyncio.sleep(0.3)
    assert conversation.messages.empty()


@pytest.mark.slow
@on_uvloop
@on_loop
async def test_the_connection_of_the_worker_is_cut(far: Far, tmp_path: Path) -> None:
    """The worker ends by itself, and its agent says so."""
    conversation = await loaded(far, tmp_path)
    far.data.cut()
    assert await asyncio.wait_for(conversation.lost, 5) is None
    how = await asyncio.wait_for(conversation.worker.wait(), 10)
    assert how.startswith("exited with status")
    assert conversation.worker.begun == 0
    await gone(conversation.worker.pid, far.placer.placements[0].pids[0])


@pytest.mark.slow
@on_uvloop
@on_loop
async def test_the_connection_of_the_agent_is_cut(far: Far, tmp_path: Path) -> None:
    """Agent and worker end, and the server knows at once."""
    conversation = await loaded(far, tmp_path)
    far.agents.cut()
    how = await asyncio.wait_for(conversation.worker.wait(), 5)
    assert how == "is out of reach: the connection to its node process-1 is lost"
    await gone(conversation.worker.pid, far.placer.placements[0].pids[0])


@pytest.mark.slow
@on_uvloop
@on_loop
async def test_a_slow_and_narrow_network(far: Far, tmp_path: Path) -> None:
    """Large batches pass, and keep no heartbeat back; the round trip is measured."""
    conversation = await loaded(far, tmp_path)
    far.data.rate, far.data.latency, far.agents.latency = 4e6, 0.05, 0.05
    await answers(conversation, 0, 2_500_000)
    assert not conversation.worker.lost.done()
    # Longer trips count little by little.
    assert 0.01 < conversation.worker.round_trip < 1
    far.data.rate = 0
    conversation.worker.kill()
    await conversation.worker.wait()
