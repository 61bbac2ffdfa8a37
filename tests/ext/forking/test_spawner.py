"""Workers that are forked: the same as others, sooner, and with nothing of the spawner's own."""

import asyncio
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from tests.engine.pools.conftest import Conversation
from tests.ext.forking.conftest import HEAVY, preloaded
from tests.waiting import until

from modelserver.engine.pools.variables import ALLOCATOR
from modelserver.engine.wire.marks import MARK, mark_of
from modelserver.engine.wire.messages import Loaded, Predict, Row, Stop
from modelserver.ext.forking import spawner as spawner_module
from modelserver.ext.forking.spawner import Spawner, can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="the system cannot fork workers safely")

TELL = f"""
import {HEAVY}
import json, os, random, resource, signal, sys, threading
def handle(data, context):
    if data is None:
        return None
    links = [f"/proc/self/fd/{{number}}" for number in os.listdir("/proc/self/fd")]
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGCHLD
    told = {{
        "descriptors": [os.readlink(link) for link in links if os.path.lexists(link)],
        "variables": dict(os.environ),
        "random": random.random(),
        "session": os.getsid(0),
        "directory": os.getcwd(),
        "path": sys.path[0],
        "argv": sys.argv,
        "signals": [str(signal.getsignal(n)).partition(" at ")[0] for n in numbers],
        "threads": threading.active_count(),
        "modules": sorted(sys.modules),
    }}
    print("told")
    return [json.dumps(told).encode()] * len(data)
"""


@pytest.fixture
async def begin_worker(spawner):
    """Starts workers, which load; they are ended after the test."""
    talks = []

    async def begin(folder):
        talks.append(await Conversation(spawner).start(folder))
        await talks[-1].next()
        return talks[-1]

    yield begin
    for talk in talks:
        talk.process.kill()
        await talk.process.wait()


async def test_workers_are_forked_with_how_torch_allocates(begin_worker, spawner, tmp_path):
    """It is in the environment of the spawner, before that imports torch for anybody, and in the worker's."""
    (tmp_path / "h.py").write_text(TELL)
    await spawner.preload("", [HEAVY], os.environ)
    talk = await begin_worker(tmp_path)
    environments = psutil.Process(talk.parent()).environ(), (await talk.described())["variables"]
    talk.process.send(Stop())
    await talk.process.wait()

    assert [environment[ALLOCATOR] for environment in environments] == ["expandable_segments:True"] * 2


async def test_a_forked_worker_is_like_another(spawner, tmp_path):
    """Forked or not, a worker has the same descriptors, variables, signals and paths (F47, F68)."""
    (tmp_path / "h.py").write_text(TELL)
    fields = {"hidden_variables": re.compile("HOME"), "extra_environment": {"RANK": "3"}, "threads": 2}
    plain, forked = Conversation(None), Conversation(spawner)
    descriptions = []
    for talk in (plain, forked):
        await talk.start(tmp_path, **fields)
        loaded, _ = await talk.next()
        assert isinstance(loaded, Loaded)
        descriptions.append(await talk.described())
    (other, own), pids = descriptions, [talk.process.pid for talk in (plain, forked)]
    lines = [psutil.Process(pid).cmdline() for pid in pids]
    spawner_pid, mark = forked.parent(), mark_of(pids[1])
    for talk in (plain, forked):
        talk.process.send(Stop())

    assert [await talk.process.wait() for talk in (plain, forked)] == ["exited with status 0"] * 2
    assert [talk.process.last_output() for talk in (plain, forked)] == ["told"] * 2
    assert spawner_pid != os.getpid() == int(lines[0][-1])
    kinds = [sorted(re.sub(r"\d+", "", name) for name in each["descriptors"]) for each in (other, own)]
    # One more: the pipe that it lives by.
    assert kinds[1] == sorted([*kinds[0], "pipe:[]"])
    marks = [each["variables"].pop(MARK) for each in (other, own)]
    assert own["variables"] == other["variables"]
    assert marks[0].rpartition(".")[0] == marks[1].rpartition(".")[0]
    assert marks[0] != marks[1] == mark
    assert own["session"] == pids[1]
    assert own["random"] != other["random"]
    for same in ("directory", "path", "signals", "threads"):
        assert own[same] == other[same], same
    assert (own["argv"][0], own["argv"][2]) == (other["argv"][0], other["argv"][2])
    assert (lines[1][:3], int(lines[1][3]) > 2, lines[1][4]) == (lines[0][:3], True, lines[0][4])
    assert own["variables"]["RANK"] == "3"
    assert "HOME" not in own["variables"]


async def test_light_workers_are_forked_until_something_heavy_is_imported(tmp_path, monkeypatch):
    """A spawner for all forks workers that need no heavy package, though not from a process that has one."""
    monkeypatch.setattr("modelserver.ext.forking.preloading.HEAVY", frozenset({HEAVY}))
    for name, source in (("light", "def handle(data, context):\n    return data\n"), ("heavy", TELL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "h.py").write_text(source)
    for_all = Spawner(for_all=True)
    try:
        await for_all.preload("", ["modelserver_handlers.typed.handler"], os.environ)
        talks = [await Conversation(for_all).start(tmp_path / name) for name in ("light", "heavy", "light")]
        for talk in talks:
            loaded, _ = await talk.next()
            assert isinstance(loaded, Loaded)

        assert [talk.parent() == os.getpid() for talk in talks] == [False, False, True]
        for talk in talks:
            talk.process.kill()
            await talk.process.wait()
    finally:
        await for_all.close()


async def test_light_workers_that_requests_wait_for_are_forked(spawner, tmp_path):
    """By a process that has imported nothing heavy, and ends with the one that has; others are spawned."""
    for name, source in (("light", TELL.replace(HEAVY, "json")), ("heavy", TELL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "h.py").write_text(source)
    talks = []
    for name, worth in (("light", float), ("heavy", float), ("light", None), ("light", float)):
        talks.append(await Conversation(spawner).start(tmp_path / name, worth=worth))
        assert isinstance((await talks[-1].next())[0], Loaded)
    parents = [talk.parent() for talk in talks]
    modules = [(await talk.described())["modules"] for talk in talks]
    for talk in talks:
        talk.process.send(Stop())

    assert [await talk.process.wait() for talk in talks] == ["exited with status 0"] * 4
    assert parents[0] == parents[3]
    assert parents[2] == os.getpid()
    assert len({*parents}) == 3
    assert [HEAVY in names for names in modules] == [False, True, False, False]
    await spawner.close()
    assert not any(psutil.pid_exists(pid) for pid in (parents[0], parents[1]))


async def test_forks_share_one_spawner(spawner, tmp_path):
    """Workers that are started together are forked by one process, and differ in what is random."""
    (tmp_path / "h.py").write_text(TELL)
    talks = await asyncio.gather(*(Conversation(spawner).start(tmp_path) for _ in range(3)))
    for talk in talks:
        await talk.next()
    numbers = {(await talk.described())["random"] for talk in talks}
    parents = {talk.parent() for talk in talks}
    spawner_process = psutil.Process(parents.pop())
    threads, line = spawner_process.num_threads(), spawner_process.cmdline()
    for talk in talks:
        talk.process.kill()
    hows = [await talk.process.wait() for talk in talks]

    assert parents == set()
    assert len(numbers) == 3
    assert (threads, line[2]) == (1, "modelserver.ext.forking.fork_server")
    assert all(how.startswith("was killed by SIGKILL") for how in hows)
    assert not any(psutil.pid_exists(talk.process.pid) for talk in talks)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(3)", "exited with status 3"),
        ("import sys; sys.exit(4)", "exited with status 4"),
        ("import sys; sys.exit('words')", "exited with status 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("raise BaseException('raw')", "exited with status 1"),
    ],
)
async def test_ends_are_reported(begin_worker, tmp_path, code, how):
    """How a forked worker ended is known as for any other (F39, F45)."""
    source = f"import {HEAVY}\ndef handle(data, context):\n    if data:\n        {code}\n"
    (tmp_path / "h.py").write_text(source)
    talk = await begin_worker(tmp_path)
    assert talk.parent() != os.getpid()
    talk.process.send(Predict(0, [Row("a", 1)]), [b"x"])

    assert await asyncio.wait_for(talk.process.wait(), 20) == how
    assert await talk.lost is None


async def test_what_is_left_at_the_end_is_run(begin_worker, tmp_path):
    """Functions for the exit run and buffers are written, though the process does not take itself apart."""
    (tmp_path / "h.py").write_text(
        f"import {HEAVY}, atexit, sys\natexit.register(lambda: sys.stdout.write('bye'))\n"
        "def handle(data, context):\n    return data\n"
    )
    talk = await begin_worker(tmp_path)
    assert talk.parent() != os.getpid()
    talk.process.send(Stop())

    assert await talk.process.wait() == "exited with status 0"
    assert talk.process.last_output() == "bye"


async def test_the_spawner_may_die(begin_worker, spawner, tmp_path, monkeypatch):
    """Workers outlive their spawner, their end is noticed, and the next ones get another (F39)."""
    monkeypatch.setattr(spawner_module, "REPLACEMENT_PATIENCE", 20.0)
    (tmp_path / "h.py").write_text(TELL)
    first = await begin_worker(tmp_path)
    old = psutil.Process(first.parent())
    old.kill()
    await until(lambda: spawner._deaths)
    # Its parent has reaped it, so processes that it forked have another parent.
    await until(lambda: not old.is_running())

    assert (await first.described())["threads"] == 1
    second = await begin_worker(tmp_path)
    assert second.parent() not in {old.pid, os.getpid()}
    first.process.kill()
    assert (await first.process.wait()).startswith("ended with an unknown status")
    second.process.kill()
    assert (await second.process.wait()).startswith("was killed by SIGKILL")


async def test_a_stopped_spawner_is_noticed(begin_worker, spawner, tmp_path, caplog):
    """It holds up neither the end of a worker nor the start of the next; another takes its place (F39)."""
    (tmp_path / "h.py").write_text(TELL)
    first = await begin_worker(tmp_path)
    old = psutil.Process(first.parent())
    old.suspend()
    first.process.kill()
    await first.process.wait()
    second = await begin_worker(tmp_path)
    await until(lambda: spawner._replacing is not None and spawner._replacing.done())
    third = await begin_worker(tmp_path)

    assert second.parent() != old.pid
    assert third.parent() not in {old.pid, os.getpid()}
    assert "The spawner was stopped by a signal" in caplog.text
    assert not old.is_running()


async def test_a_stopped_spawner_is_noticed_though_nobody_needs_it(
    begin_worker, spawner, tmp_path, monkeypatch
):
    """It is replaced before the next worker is to be started (F39)."""
    monkeypatch.setattr(spawner_module, "STOPPED_PATIENCE", 0.1)
    monkeypatch.setattr(spawner_module, "LOOKS", 0.02)
    (tmp_path / "h.py").write_text(TELL)
    talk = await begin_worker(tmp_path)
    old = psutil.Process(talk.parent())
    old.suspend()
    await until(lambda: not old.is_running())
    await until(lambda: spawner._replacing is not None and spawner._replacing.done())

    assert not spawner._process.lost


async def test_a_busy_spawner_is_waited_for(begin_worker, tmp_path, monkeypatch):
    """One that imports for longer than a stopped one would be given is left to it."""
    monkeypatch.setattr(spawner_module, "STOPPED_PATIENCE", 0.1)
    monkeypatch.setattr(spawner_module, "LOOKS", 0.02)
    model = preloaded(monkeypatch, tmp_path, "import time\ntime.sleep(0.5)\n")
    talk = await begin_worker(model)

    assert talk.parent() != os.getpid()


async def test_workers_do_not_wait_for_a_replacement(spawner, tmp_path, monkeypatch):
    monkeypatch.setattr(spawner_module, "REPLACEMENT_PATIENCE", 0.1)
    gate = tmp_path / "gate"
    gate.touch()
    source = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    model = preloaded(monkeypatch, tmp_path, source)
    talks = [await Conversation(spawner).start(model)]
    lost = talks[0].parent()
    gate.unlink()
    os.kill(lost, signal.SIGKILL)
    await until(lambda: spawner._deaths)
    talks.append(await Conversation(spawner).start(model))
    gate.touch()
    await until(lambda: spawner._process and not spawner._process._pending)
    talks.append(await Conversation(spawner).start(model))
    parents = [psutil.Process(talk.process.pid).ppid() for talk in talks[1:]]

    for talk in talks:
        talk.process.kill()
        await talk.process.wait()
    assert parents[0] == os.getpid()
    assert parents[1] not in {lost, os.getpid()}


async def test_a_spawner_that_keeps_dying_is_abandoned(begin_worker, spawner, tmp_path, monkeypatch):
    (tmp_path / "h.py").write_text(TELL)
    monkeypatch.setattr(spawner_module, "MAX_DEATHS", 1)
    first = await begin_worker(tmp_path)
    os.kill(first.parent(), signal.SIGKILL)
    await until(lambda: spawner._deaths)
    second = await begin_worker(tmp_path)

    assert second.parent() == os.getpid()


async def test_a_closed_spawner_lets_nobody_wait(spawner, tmp_path, monkeypatch):
    model = preloaded(monkeypatch, tmp_path, "import time\ntime.sleep(60)\n")
    waiting = asyncio.create_task(Conversation(spawner).start(model))
    await until(lambda: spawner._process and spawner._process._pending)
    await spawner.close()
    talks = [await waiting, await Conversation(spawner).start(model)]

    assert [talk.parent() for talk in talks] == [os.getpid()] * 2
    for talk in talks:
        talk.process.kill()
        await talk.process.wait()


async def test_a_spawner_that_refuses_still_reports_ends(begin_worker, spawner, tmp_path):
    (tmp_path / "h.py").write_text(TELL)
    forked = await begin_worker(tmp_path)
    spawner.refuse()
    later = await begin_worker(tmp_path)
    parent = later.parent()
    for talk in (forked, later):
        talk.process.send(Stop())

    assert [await talk.process.wait() for talk in (forked, later)] == ["exited with status 0"] * 2
    assert parent == os.getpid()


SERVER = """
import asyncio, dataclasses, sys
from modelserver.engine.wire.messages import Load
from modelserver.ext.forking import preloading
from modelserver.engine.pools.process import launch
from modelserver.engine.pools.spec import Receiver, WorkerSpec
from modelserver.ext.forking.spawner import Spawner
preloading.HEAVY = frozenset({"colorsys"})
async def main():
    loaded = asyncio.Event()
    spec = WorkerSpec(load=Load("m", "1.0", sys.argv[1], "h.py", 1), threads=1, frame_limit=9999)
    spec = dataclasses.replace(spec, spawner=Spawner())
    worker = await launch(spec, "W", Receiver(lambda message, tail: loaded.set(), print))
    await loaded.wait()
    print(worker.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.alone
def test_workers_and_spawner_die_with_the_server(tmp_path):
    """They end even if the server is killed while a forked worker computes and reads no messages; processes
    that a handler left in a session of their own end too (F48).
    """
    # The interpreter lock is held for all that time.
    (tmp_path / "h.py").write_text(
        f"import {HEAVY}, re, subprocess, sys, threading\n"
        "program = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "subprocess.Popen(program, start_new_session=True)\n"
        "def handle(data, context):\n    return data\n"
        "threading.Timer(0.05, lambda: re.match('(a*)*b', 'a' * 40)).start()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as server:
        worker = psutil.Process(int(server.stdout.readline()))
        spawner = psutil.Process(worker.ppid())
        assert spawner.ppid() == server.pid
        (left,) = worker.children()
        server.kill()
    _, alive = psutil.wait_procs([worker, spawner, left], timeout=5)

    assert alive == []
