import asyncio
import os
import signal
import socket
import sys
from typing import get_type_hints

import psutil
import pytest
from tests.ext.frontends.doubles import endpoints_of

from modelserver.errors import ConfigError
from modelserver.ext.frontends import processes as fleet_module
from modelserver.ext.frontends.messages import Setup
from modelserver.ext.frontends.processes import Fleet
from modelserver.ext.frontends.routes import FrontEndDescription
from modelserver.models.settings.settings import Settings


@pytest.fixture
def listener():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


def make_fleet(listener):
    settings = Settings(frontend_processes=2)
    endpoints = endpoints_of(settings=settings)
    endpoints.sockets, endpoints.edge = {settings.inference_address: listener}, print
    return Fleet(endpoints, Setup(100, 1000, True, True))


@pytest.mark.parametrize(
    ("program", "line"), [("/bin/false", "Front end 0 ended with status 1"), ("/no/such/program", "")]
)
async def test_front_ends_that_cannot_start_fail_the_start(listener, monkeypatch, caplog, program, line):
    monkeypatch.setattr(sys, "executable", program)
    fleet = make_fleet(listener)
    fleet.start()
    with pytest.raises(ConfigError, match="frontend_processes=2"):
        await asyncio.wait_for(fleet.open(), 20)
    await fleet.close(1.0)

    assert line in caplog.text
    assert fleet.pids == []


async def test_front_end_that_does_not_end_is_killed(listener, monkeypatch):
    for name in ("CLOSE_PATIENCE", "END_PATIENCE"):
        monkeypatch.setattr(fleet_module, name, 0.1)
    fleet = make_fleet(listener)
    fleet.start()
    await fleet.open()
    pids = fleet.pids
    described = fleet.describe()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(fleet.close(0.1), 10)

    assert len(pids) == 2
    assert fleet.pids == fleet.describe() == []
    assert [each["pid"] for each in described] == pids
    for each in described:
        assert get_type_hints(FrontEndDescription).keys() == each.keys()
        assert (each["state"], each["connections"], each["requests"], each["replaced"]) == ("ready", 0, 0, 0)
        assert each["memoryUsage"] > 1 << 20
    assert not any(psutil.pid_exists(pid) for pid in pids)
