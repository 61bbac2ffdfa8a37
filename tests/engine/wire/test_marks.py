"""Processes are known by their marks, and only those that are meant are ended."""

import os
import subprocess
import sys

import pytest

from modelserver.engine.wire.marks import MARK, Mark, mark_of, new_mark

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/ns"), reason="there is no /proc")

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]


@pytest.fixture
def start():
    """Starts programs with a mark, in sessions of their own."""
    started = []

    def with_mark(mark):
        environment = {**os.environ, MARK: mark}
        child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env=environment, start_new_session=True)
        child.stdout.readline()
        started.append(child)
        return child

    yield with_mark
    for child in started:
        child.kill()
        child.communicate()


def test_a_mark_is_read_back(start):
    mark, other = new_mark(), new_mark()

    assert mark != other
    assert len(mark) == len(other)
    assert mark_of(start(mark).pid) == mark


@pytest.mark.parametrize(
    "mark", ["", "x", "0" * 64, new_mark() + "0"], ids=["empty", "short", "zeros", "long"]
)
def test_what_is_no_mark(mark, start):
    child = start(mark)

    assert mark_of(child.pid) == ""
    Mark.end_orphans()
    assert child.poll() is None


def test_only_one_workers_processes_are_ended(start):
    mark, other = new_mark(), new_mark()
    meant = [start(mark), start(mark)]
    spared = start(other)

    assert Mark(mark).end() == 2
    assert [child.wait(10) for child in meant] == [-9, -9]
    Mark.end_orphans()
    assert spared.poll() is None


def test_processes_of_all_workers_of_a_server_are_ended(start):
    children = [start(new_mark()), start(new_mark())]

    assert Mark().end_all() >= 2
    assert [child.wait(10) for child in children] == [-9, -9]


@pytest.mark.parametrize(
    "server", [f"{pid:010d}.{7:020d}" for pid in (4_000_000_000, os.getpid())], ids=["nobody", "another time"]
)
def test_processes_of_dead_servers_are_ended(server, start):
    """A server is dead if nobody has its number, or somebody who started at another time."""
    child = start(server + new_mark()[len(server) :])

    assert Mark.end_orphans() >= 1
    assert child.wait(10) == -9


def test_what_a_zombie_left_behind_is_ended(start):
    code = "from modelserver.engine.wire.marks import new_mark; print(new_mark())"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        left = start(server.stdout.read().strip())
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        Mark.end_orphans()
        assert left.wait(10) == -9
