import asyncio
import contextlib
import logging
import os
import re
import struct
import weakref
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.cycles import no_cycles
from tests.ext.cluster.conversation import Conversation, predict
from tests.ext.cluster.played import End, PlayedPlacement, PlayedPlacer, close_all
from tests.waiting import until

from modelserver.engine.pools.spec import WorkerSpec
from modelserver.engine.wire.frames import encode, to_worker_decoder
from modelserver.engine.wire.messages import Answer, Load, Loaded, Ping, Pong, Recalled, Result
from modelserver.errors import StartFailed
from modelserver.ext.cluster import launcher as starting_module
from modelserver.ext.cluster import messages
from modelserver.ext.cluster import remote as remote_module
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.remote import RemoteWorker, SharedPlace
from modelserver.surface.tls.context import Certificate

_LEASE = 0.8
_SPEC = WorkerSpec(Load("m", "1.0", "/m", "h", 1), threads=1, frame_limit=1)


class Stage:
    """A server with agents that are played, by the proxies ``way`` (of agents) and ``data`` (of workers)."""

    def __init__(self, hub, folder):
        self.placer = PlayedPlacer()
        self.cluster = Cluster(hub, self.placer, placement_timeout=20.0, lost_after=_LEASE)
        self.hub = hub
        self.folder = folder
        self.guest = Mock(**{"reserve.return_value": 0})
        self.conversation: Conversation
        self.starting: asyncio.Task[RemoteWorker]

    def begin(self):
        self.conversation = Conversation()
        start = self.conversation.start(self.cluster, self.folder, guest=self.guest)
        self.starting = asyncio.create_task(start)

    async def placed(self):
        self.begin()
        return await self.placer.agent()

    async def arrived(self):
        """An agent is there, and listens."""
        agent = await self.placed()
        agent.present()
        agent.listen()
        return agent

    async def started(self):
        agent = await self.arrived()
        end = await agent.worker()
        return await self.starting, agent, end

    async def refusal(self):
        """Why the start has failed; by then its place has been given back, its invitations are void, and its
        model knows that it has none.
        """
        with pytest.raises(NoPlace) as refused:
            await asyncio.wait_for(self.starting, 15)
        assert self.placer.placements[-1].is_withdrawn
        assert not self.hub._expected
        self.guest.unplaced.assert_called_once_with()
        return str(refused.value)


@pytest.fixture(params=["plain", "tls"])
async def stage(request, bound, tmp_path):
    certificate = Certificate.throwaway([]) if request.param == "tls" else None
    hub = Hub(bound, "127.0.0.1", certificate=certificate)
    await hub.open()
    yield Stage(hub, tmp_path)
    hub.close()
    close_all()
    await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    """Nodes that are played dial once."""
    monkeypatch.setattr("modelserver.ext.cluster.node.dial.PAUSES", ())


plainly = pytest.mark.parametrize("stage", ["plain"], indirect=True)


async def test_frames_pass_in_both_directions(stage):
    """Small and large batches arrive, whole, and so do their answers, however they are cut."""
    worker, agent, end = await stage.started()
    loading, _ = await end.receive()
    assert loading.model_name == "m"
    end.send(Loaded(False, 0.1))
    assert isinstance((await stage.conversation.next())[0], Loaded)
    for number, size in enumerate((1, 16_384, 70_000, 3_000_000)):
        body = os.urandom(size)
        worker.send(*predict(number, body))
        message, tail = await end.receive()
        assert (message.sequence, tail) == (number, body)
        end.send(Result(number, [Answer(size)], 0.0), [body])
        message, tail = await stage.conversation.next()
        assert (message.sequence, tail) == (number, body)
    frame = b"".join(encode(Pong()))
    for position in range(len(frame)):
        end.write(frame[position : position + 1])
        await asyncio.sleep(0)
    assert await stage.conversation.next() == (Pong(), b"")
    worker.send(Ping())
    assert await end.receive() == (Ping(), b"")
    assert (worker.pid, worker.pids, worker.recalls) == (4711, [], False)
    agent.send(messages.WorkerEnded(3, 4, False))
    end.close()
    assert await worker.wait() == "exited with status 3"
    assert worker.batches_started == 4
    assert await stage.conversation.lost is None
    assert stage.placer.placements[0].is_withdrawn
    agent.close()


@plainly
async def test_reports_of_an_agent_reach_their_places(stage, caplog):
    caplog.set_level(logging.INFO)
    worker, agent, end = await stage.started()
    agent.send(messages.Condition(5, "GPU", 7))
    agent.send(messages.StartProgress("packages are installed"))
    agent.send(messages.WorkerOutput(False, b"a lin"))
    agent.send(messages.WorkerOutput(False, b"e\nno end"))
    agent.send(messages.TakenBack(2, 3))
    assert await stage.conversation.next() == (Recalled(2, 3), b"")
    worker.recall(9)
    assert await agent.heard.get() == messages.Recall(9)
    assert (worker.node.resident, worker.node.of_family, worker.node.gpu) == (5, 7, "GPU")
    assert "packages are installed" in caplog.text
    assert worker.is_alive
    assert 0 < worker.round_trip < 1
    worker.kill()
    assert await asyncio.wait_for(worker.wait(), 10) == "was killed by SIGKILL"
    assert worker.batches_started == 1
    assert worker.last_output() == "a line\nno end"
    assert await end.ended()
    agent.close()


@plainly
async def test_refusal_of_an_agent_fails_the_start(stage):
    """A worker that has connected is disconnected."""
    agent = await stage.arrived()
    end = End((await agent.start).worker, to_worker_decoder, 1 << 20)
    await end.dial()
    agent.send(messages.StartRefused("there is no room for 5 GB of files"))
    assert await stage.refusal() == "there is no room for 5 GB of files"
    assert await end.ended()
    await agent.gone


@plainly
@pytest.mark.parametrize("data", [{"version": "0.0.1"}, {"python": "3.1"}])
async def test_another_version_is_refused(stage, data):
    agent = await stage.placed()
    agent.present(**data)
    (value,) = data.values()
    assert re.match(rf"node n1 \(host1\) has modelserver .*{value}", await stage.refusal())


@plainly
async def test_failed_installation_is_the_models_fault(stage, caplog):
    caplog.set_level(logging.INFO)
    agent = await stage.placed()
    agent.present()
    agent.send(messages.StartProgress("ERROR: No matching distribution found", "m_1.0-pip"))
    agent.send(messages.StartRefused("Custom pip package installation failed", 400))
    with pytest.raises(StartFailed, match=r"^Custom pip package") as failed:
        await asyncio.wait_for(stage.starting, 15)
    (line,) = (record for record in caplog.records if record.name == "modelserver.model")

    assert (failed.value.status, failed.value.type) == (400, "ModelException")
    assert (line.getMessage(), line.__dict__["source"]) == (
        "ERROR: No matching distribution found",
        "m_1.0-pip@n1",
    )


@plainly
async def test_worker_that_never_connects_is_abandoned(stage, monkeypatch):
    monkeypatch.setattr(starting_module, "CONNECT_TIME", 0.2)
    agent = await stage.arrived()
    start = await agent.start
    agent.send(messages.WorkerStarted(1, "/m", ""))
    assert await stage.refusal() == "its process did not connect within 0.2 s"
    assert await agent.heard.get() is not None
    late = End(start.worker, None, 1)
    with pytest.raises(ConnectionError):
        await late.dial()


@plainly
async def test_place_without_an_agent_fails_the_start(stage):
    stage.cluster = Cluster(stage.hub, stage.placer, placement_timeout=0.1, lost_after=_LEASE)
    stage.begin()
    assert await stage.refusal() == "no machine was found within 0.1 s. 1 CPU is free of 2"
    stage.cluster = Cluster(stage.hub, stage.placer, placement_timeout=20.0, lost_after=_LEASE)
    stage.folder = stage.folder / "again"
    stage.folder.mkdir()
    stage.starting = asyncio.create_task(stage.conversation.start(stage.cluster, stage.folder))
    await until(lambda: len(stage.placer.placements) == 2)
    stage.placer.placements[-1].ended.set_result("its node was turned off")
    assert (await stage.refusal()).startswith("its node was turned off")


@plainly
async def test_start_without_a_place_leaves_nothing(stage, monkeypatch):
    """A reference cycle would keep the worker, and with it its pool, until the next collection."""
    monkeypatch.setattr(remote_module, "_KILL_TIME", 0.0)
    stage.cluster = Cluster(stage.hub, stage.placer, placement_timeout=0.1, lost_after=_LEASE)
    with no_cycles():
        stage.begin()
        with contextlib.suppress(NoPlace):
            await stage.starting
        left = weakref.ref(stage.conversation)
        del stage.conversation, stage.starting
        stage.placer.placements.clear()
        await until(lambda: left() is None)


@plainly
@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        struct.pack("<II", 0xFFFFFFFF, 8),
        struct.pack("<II", messages.MAX_MESSAGE + 1, 8),
        b"".join(encode(messages.Recall(1))),
        struct.pack("<II", 8, 9) + bytes(8),
    ],
    ids=["garbage", "four gigabytes", "over the limit", "the server's", "no head"],
)
@pytest.mark.parametrize("is_started", [True, False])
async def test_agent_that_speaks_nonsense_is_abandoned(stage, data, is_started):
    if is_started:
        worker, agent, end = await stage.started()
        agent.write(data)
        how = await asyncio.wait_for(worker.wait(), 5)
        assert how == "is out of reach: its agent cannot be understood"
        assert await end.ended()
    else:
        agent = await stage.placed()
        agent.listen()
        agent.write(data)
        assert "cannot be understood" in await stage.refusal()
    await asyncio.wait_for(agent.gone, 5)


@plainly
async def test_a_lost_worker_is_no_invalid_message(stage):
    worker, agent, end = await stage.started()
    end.close()
    assert await asyncio.wait_for(stage.conversation.lost, 5) is None
    assert not worker.lost.done()
    agent.send(messages.WorkerEnded(-11, 2, False))
    assert await worker.wait() == "was killed by SIGSEGV"
    agent.close()


async def test_a_lost_agent_takes_its_worker_along(stage):
    worker, agent, end = await stage.started()
    agent.close()
    how = await asyncio.wait_for(worker.wait(), 5)
    assert how == "is out of reach: the connection to its node n1 is lost"
    assert worker.batches_started is None
    assert await end.ended()


class FakeLoop:
    """The clock of a worker's lease, and the call that is due next."""

    def __init__(self):
        self.now, self.calls = 0.0, list[tuple[float, Any]]()

    def time(self):
        return self.now

    def call_later(self, seconds, call):
        self.calls.append((self.now + seconds, call))
        return SimpleNamespace(cancel=self.calls.clear)

    def pass_time(self, until, late=0.0):
        """Calls what is due, ``late`` seconds after its time."""
        while self.calls and self.calls[0][0] <= until:
            due, call = self.calls.pop(0)
            self.now = due + late
            call()
        self.now = max(self.now, until)


@pytest.mark.parametrize(
    ("heard", "late", "end"),
    [([], 0.0, 8.0), ([1.5], 0.0, 9.5), ([1.0, 2.0, 3.0, 7.5], 0.0, 15.5), ([], 60.0, 68.0)],
    ids=["silent", "heard once", "heard often", "the server did not run"],
)
async def test_silent_agent_is_abandoned_after_its_lease(monkeypatch, heard, late, end):
    fake = FakeLoop()
    worker = RemoteWorker("W-1-m", 8.0, lambda _: None, _SPEC)
    monkeypatch.setattr(worker, "_loop", fake)
    worker.connection_made(SimpleNamespace(is_closing=lambda: True, close=lambda: None))
    for moment in heard:
        fake.pass_time(moment)
        worker.data_received(b"")
    if late:
        fake.pass_time(1.5, late)
    fake.pass_time(end - 0.02)
    assert not worker.lost.done()
    fake.pass_time(end + 0.02)

    assert worker.lost.result() == "is out of reach: nothing was heard of its node  for 8 s"


async def test_last_process_gives_the_place_back():
    placement = PlayedPlacement()
    place = SharedPlace(placement, 2)
    place.leave()
    assert not placement.is_withdrawn
    place.leave()
    assert placement.is_withdrawn


@plainly
async def test_killed_worker_out_of_reach_counts_as_killed(stage, monkeypatch):
    monkeypatch.setattr(remote_module, "_KILL_TIME", 0.1)
    worker, agent, _ = await stage.started()
    monkeypatch.setattr(agent, "send", lambda message: None)
    worker.kill()
    assert await asyncio.wait_for(worker.wait(), 5) == "was killed by SIGKILL"
    assert worker.batches_started is None
    agent.close()
