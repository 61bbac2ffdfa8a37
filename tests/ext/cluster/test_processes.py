from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from modelserver.engine.demand import Demand
from modelserver.ext.cluster import processes as processes_module
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.processes import ProcessPlacer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture
async def placer() -> AsyncIterator[ProcessPlacer]:
    made = ProcessPlacer()
    yield made
    await made.close()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What runs instead of an agent's Python."""

    def write(script: str) -> None:
        path = tmp_path / "agent.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return write


async def test_an_agent_reads_its_invitation(
    placer: ProcessPlacer, agent: Callable[[str], None], tmp_path: Path
) -> None:
    """From a pipe, where nobody else sees it; arguments and environment have nothing of it."""
    agent(f"cat > {tmp_path}/read; echo $* > {tmp_path}/arguments; env > {tmp_path}/environment; exit 4")
    placement = await placer.place(['{"secret": "s3cr3t"}'], Demand(), "W-1")
    assert await asyncio.wait_for(placement.ended, 10) == "its agent's process ended with 4"
    read = {name: (tmp_path / name).read_text() for name in ("read", "arguments", "environment")}
    assert read["read"] == '{"secret": "s3cr3t"}\n'
    assert read["arguments"].split() == ["-m", "modelserver.ext.cluster.node", "process-1", str(os.getpid())]
    assert "s3cr3t" not in read["arguments"] + read["environment"]
    placement.withdraw()


async def test_agent_that_reads_nothing_is_forgotten(
    placer: ProcessPlacer, agent: Callable[[str], None]
) -> None:
    """It may have ended before its invitation is written."""
    agent("exec 0<&-; exit 1")
    placements = [await placer.place(["x" * 20_000], Demand(), "W-1") for _ in range(3)]
    for placement in placements:
        assert "ended with 1" in await asyncio.wait_for(placement.ended, 10)
    agent("sleep 60")
    await placer.place(["x"], Demand(), "W-1")
    # Placements that have ended are forgotten.
    assert len(placer.placements) == 1


async def test_a_place_is_given_back(placer: ProcessPlacer, agent: Callable[[str], None]) -> None:
    """Its agent is asked once to end."""
    agent("exec sleep 60")
    placement = await placer.place(["x"], Demand(), "W-1")
    placement.withdraw()
    placement.withdraw()
    assert "ended with -15" in await asyncio.wait_for(placement.ended, 10)
    placement.withdraw()
    assert placer.situation() == ""


async def test_agent_that_does_not_react_is_killed(
    placer: ProcessPlacer, agent: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped, or does not heed the request, is killed after a while."""
    monkeypatch.setattr(processes_module, "_GRACE", 0.2)
    agent(f"trap : TERM; touch {tmp_path}/ready; while :; do read x < {tmp_path}/never; done")
    os.mkfifo(tmp_path / "never")
    placement = await placer.place(["x"], Demand(), "W-1")
    while not os.path.exists(tmp_path / "ready"):  # noqa: ASYNC110, ASYNC240 - limited by the test's time
        await asyncio.sleep(0.01)
    os.kill(placement.pids[0], signal.SIGSTOP)
    placement.withdraw()
    assert "ended with -9" in await asyncio.wait_for(placement.ended, 10)


async def test_no_process_can_be_started(placer: ProcessPlacer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has one line."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NoPlace, match=r"an agent's process cannot be started: .*No such file"):
        await placer.place(["x"], Demand(), "W-1")


async def test_closing_ends_all_agents(placer: ProcessPlacer, agent: Callable[[str], None]) -> None:
    """No agent is left."""
    agent("exec sleep 60")
    placements = [await placer.place(["x"], Demand(), "W-1") for _ in range(3)]
    await placer.close()
    assert all(placement.ended.done() for placement in placements)
