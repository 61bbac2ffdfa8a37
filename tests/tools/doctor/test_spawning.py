"""The doctor's end of an observed worker."""

from __future__ import annotations

import json
import os
import socket
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.engine.wire.probing import PROBE, Called, Reported
from modelserver.tools.doctor.spawning import ObservedWorkers

if TYPE_CHECKING:
    import pytest


_PROGRAM = f"""
import json, os, socket, sys
reports = socket.socket(fileno=int(os.environ["{PROBE}"]))
for text in json.loads(os.environ["TEXTS"]):
    reports.send(bytes.fromhex(text))
print(json.dumps(sys.argv[1:]))
"""


async def test_reports_are_read_as_far_as_they_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process gets a socket of its own beside the worker's, and what it sends arrives in order."""
    workers, told = ObservedWorkers(), [Reported([], 1.0, 2.0), Called(1, 1), Called(2, 2)]
    monkeypatch.setattr(
        "modelserver.tools.doctor.spawning.worker_command", lambda *_: [sys.executable, "-c", _PROGRAM]
    )
    environment = {**os.environ, "TEXTS": json.dumps([msgspec.msgpack.encode(each).hex() for each in told])}
    spec: Any = SimpleNamespace(python=sys.executable)
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs:
        process = await workers.spawn(spec, environment, (write, write), theirs.fileno())
        os.close(write)
        assert await process.wait() == 0
        workers.read()
        workers.read()

        assert (workers.loads, workers.calls) == (told[:1], told[1:])
        assert json.loads(os.read(read, 1000)) == [str(theirs.fileno()), str(os.getpid())]
    os.close(read)
    workers.close()
    workers.read()
