import contextlib
import subprocess
import sys

import pytest

from modelserver.engine.telemetry.system import worker_memory
from modelserver.ext.parking import memory
from modelserver.ext.parking.memory import footprint

MIB = 1 << 20
# Each has 30 MiB, and starts the next one in a thread.
CHAIN = r"""
import os, subprocess, sys, threading
block, left = b"x" * (30 << 20), int(sys.argv[1])
def run():
    os.write(1, b"%d\n" % os.getpid())
    if left:
        with subprocess.Popen([sys.executable, __file__, str(left - 1)]):
            pass
    sys.stdin.read()
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
# A process with 60 MiB forks one with 40 MiB more, which forks two.
FORKED = r"""
import os, sys
inherited = b"x" * (60 << 20)
if not os.fork():
    block = b"x" * (40 << 20)
    os.write(1, b"%d\n" % os.getpid())
    for _ in range(2):
        if not os.fork():
            os.write(1, b"%d\n" % os.getpid())
            break
sys.stdin.read()
"""


@contextlib.contextmanager
def processes_of(folder, program, count, *arguments):
    """The ids that so many processes of the program print."""
    path = folder / "program.py"
    path.write_text(program)
    command = [sys.executable, str(path), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # All of them wait for the end of their input.
        yield [int(process.stdout.readline()) for _ in range(count)]


def test_descendants_are_measured_with_a_process(tmp_path):
    """Wherever they are below it, and whichever thread started them."""
    with processes_of(tmp_path, CHAIN, 3, "2") as pids:
        family, size = footprint(pids[:1])
        _, alone = footprint(pids[2:])

    assert family == pids
    assert 30 * MIB < alone < 60 * MIB
    assert 90 * MIB < size < 4 * alone


def test_memory_that_forked_children_share_is_counted_once(tmp_path):
    """What the process has from its own parent is not its own: other workers share it."""
    with processes_of(tmp_path, FORKED, 3) as (worker, *children):
        family, size = footprint([worker])

    assert sorted(family) == sorted([worker, *children])
    assert 40 * MIB < size < 60 * MIB


def test_resident_memory_counts_where_shared_memory_is_not_known(tmp_path, monkeypatch):
    """And nothing of a process that has ended."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(memory, "open", refuse, raising=False)
    with processes_of(tmp_path, CHAIN, 1, "0") as pids:
        assert footprint(pids) == (pids, pytest.approx(worker_memory(pids[0]), rel=0.1))
    assert footprint([2**22 + 12345]) == ([2**22 + 12345], 0)
