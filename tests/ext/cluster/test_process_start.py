"""One process that is started elsewhere; its agent and itself are played."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.ext.cluster.played import PlayedAgent, close_all

from modelserver.engine.pools.spec import WorkerSpec
from modelserver.engine.wire.messages import Load, Loaded
from modelserver.ext.cluster.hub import Hub
from modelserver.ext.cluster.launcher import ProcessStart
from modelserver.ext.cluster.packing import Packer
from modelserver.ext.cluster.placing import NoPlace

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def hub(bound: socket.socket) -> AsyncIterator[Hub]:
    made = Hub(bound, "127.0.0.1")
    await made.open()
    yield made
    close_all()
    made.close()


@pytest.fixture
async def start(hub: Hub, tmp_path: Path) -> AsyncIterator[ProcessStart]:
    """The start of a process that has not arrived anywhere."""
    (tmp_path / "h.py").write_text("")
    spec = WorkerSpec(Load("m", "1.0", str(tmp_path), "h", 1), threads=3, frame_limit=1 << 20)
    made = ProcessStart(hub, spec, "W-1-m", 5.0)
    yield made
    made.abandon()
    made.close()


async def arrive(start: ProcessStart, **data: Any) -> PlayedAgent:
    """Connects the worker's agent."""
    agent = PlayedAgent(start.invitation)
    await agent.dial()
    agent.present(**data)
    agent.listen()
    return agent


async def test_a_process_is_started_as_its_spec_says(start: ProcessStart, tmp_path: Path) -> None:
    """By the spec that is known once it has a machine; nothing is loaded before all are connected."""
    agent = await arrive(start)
    present = await start.arrived(5.0)
    messages: asyncio.Queue[Any] = asyncio.Queue()
    spec = replace(start._spec, extra_environment={"RANK": "1"}, threads=2)
    packed = await Packer().pack(tmp_path)
    connecting = asyncio.create_task(
        start.connect(
            spec, packed, ("r.txt", True), lambda *data: messages.put_nowait(data[0]), lambda _: None
        )
    )
    worker = await agent.worker()
    await connecting
    order = agent.start.result()
    worker.send(Loaded(False, 0.1))
    loading = asyncio.create_task(worker.receive())
    await asyncio.sleep(0.05)
    assert not loading.done()
    start.load()

    assert present.node == "n1"
    assert (order.environment["RANK"], order.threads) == ("1", 2)
    assert (order.requirements, order.use_venv, order.digest) == ("r.txt", True, packed.digest)
    assert (await loading)[0] == replace_dir(spec.load, order.load.model_dir)
    assert isinstance(await messages.get(), Loaded)


def replace_dir(load: Load, folder: str) -> Load:
    """The load, whose folder must be the one that the agent reports."""
    assert load.model_dir == folder
    return load


@pytest.mark.parametrize("data", [{"version": "0.0.1"}, {"python": "3.1"}])
async def test_another_version_is_refused(start: ProcessStart, data: dict[str, str]) -> None:
    """The error has both versions."""
    await arrive(start, **data)
    with pytest.raises(NoPlace, match=rf"^node n1 \(host1\) has modelserver .*{next(iter(data.values()))}"):
        await start.arrived(5.0)
