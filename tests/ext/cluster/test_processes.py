import asyncio
import os
import signal
import sys

import pytest

from modelserver.engine.demand import Demand
from modelserver.ext.cluster import extension as processes_module
from modelserver.ext.cluster.extension import ProcessPlacer
from modelserver.ext.cluster.placing import NoPlace


@pytest.fixture
async def placer():
    made = ProcessPlacer()
    yield made
    await made.close()


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """What runs instead of an agent's Python."""

    def write(script):
        path = tmp_path / "agent.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return write


async def test_an_agent_reads_its_invitation(placer, agent, tmp_path):
    agent(f"cat > {tmp_path}/read; echo $* > {tmp_path}/arguments; env > {tmp_path}/environment; exit 4")
    placement = await placer.place(['{"secret": "s3cr3t"}'], Demand(), "W-1")
    assert await asyncio.wait_for(placement.ended, 10) == "its agent's process ended with 4"
    read = {name: (tmp_path / name).read_text() for name in ("read", "arguments", "environment")}
    assert read["read"] == '{"secret": "s3cr3t"}\n'
    assert read["arguments"].split() == ["-m", "modelserver.ext.cluster.node", "process-1"]
    assert "s3cr3t" not in read["arguments"] + read["environment"]
    placement.withdraw()


async def test_agents_that_end_or_cannot_be_started_are_forgotten(placer, agent, monkeypatch):
    agent("exec 0<&-; exit 1")
    placements = [await placer.place(["x" * 20_000], Demand(), "W-1") for _ in range(3)]
    for placement in placements:
        assert "ended with 1" in await asyncio.wait_for(placement.ended, 10)
    agent("sleep 60")
    await placer.place(["x"], Demand(), "W-1")
    # Placements that have ended are forgotten.
    assert len(placer.placements) == 1

    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NoPlace, match=r"an agent's process cannot be started: .*No such file"):
        await placer.place(["x"], Demand(), "W-1")


async def test_closing_and_withdrawing_end_agents(placer, agent):
    agent("exec sleep 60")
    placement = await placer.place(["x"], Demand(), "W-1")
    placement.withdraw()
    placement.withdraw()
    assert "ended with -15" in await asyncio.wait_for(placement.ended, 10)
    placement.withdraw()
    assert placer.situation() == ""

    placements = [await placer.place(["x"], Demand(), "W-1") for _ in range(3)]
    await placer.close()
    assert all(placement.ended.done() for placement in placements)


async def test_agent_that_does_not_react_is_killed(placer, agent, tmp_path, monkeypatch):
    monkeypatch.setattr(processes_module, "_GRACE", 0.2)
    agent(f"trap : TERM; touch {tmp_path}/ready; while :; do read x < {tmp_path}/never; done")
    os.mkfifo(tmp_path / "never")
    placement = await placer.place(["x"], Demand(), "W-1")
    while not os.path.exists(tmp_path / "ready"):  # noqa: ASYNC110, ASYNC240 - limited by the test's time
        await asyncio.sleep(0.01)
    os.kill(placement.processes[0].pid, signal.SIGSTOP)
    placement.withdraw()
    assert "ended with -9" in await asyncio.wait_for(placement.ended, 10)
