"""Memory of processes, and what this one has freed."""

import os

from modelserver.engine.telemetry.system import worker_memory
from modelserver.ext.parking.memory import return_freed


def test_gaps_between_what_stays_return_to_the_system():
    pieces = [bytes(2000) for _ in range(20_000)]
    most = worker_memory(os.getpid())
    pieces = pieces[::100]
    return_freed()
    assert most - worker_memory(os.getpid()) > 20 << 20
    assert len(pieces) == 200
