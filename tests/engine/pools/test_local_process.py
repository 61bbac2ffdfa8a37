import asyncio
import os
import signal

import psutil
import pytest
from tests.engine.pools.conftest import Conversation
from tests.waiting import gone, is_alive

from modelserver.engine.wire.messages import Predict, Row
from modelserver.ext.forking.spawner import Spawner

# Processes that a handler may leave behind, each less closely related to it than the one before.
LEAVINGS = {
    "group": "child = subprocess.Popen(PROGRAM).pid",
    "session": "child = subprocess.Popen(PROGRAM, start_new_session=True).pid",
    "daemon": "child = int(subprocess.run([*PROGRAM, 'daemon'], stdout=subprocess.PIPE).stdout)",
    "fork": "child = os.fork()\nif not child:\n    os.setsid()\n    time.sleep(60)",
}
LEAVE = """
import os, subprocess, sys, time
CODE = '''
import os, sys, time
if sys.argv[1:] and (pid := os.fork()):
    os.write(1, str(pid).encode())
    os._exit(0)
if sys.argv[1:]:
    os.setsid()
    os.dup2(2, 1)
time.sleep(60)
'''
PROGRAM = [sys.executable, "-c", CODE]
{leave}
print(child, flush=True)
def handle(data, context):
    if data:
        os._exit(3)
"""


@pytest.mark.parametrize(
    ("way", "forked"), [("group", False), ("session", False), ("daemon", True), ("fork", True)]
)
async def test_what_a_handler_left_ends_with_its_worker(tmp_path, monkeypatch, way, forked):
    """Children end with the worker, also in sessions of their own and without a parent (F45)."""
    monkeypatch.setattr("modelserver.ext.forking.preloading.HEAVY", frozenset({"subprocess"}))
    spawner = Spawner() if forked else None
    (tmp_path / "h.py").write_text(LEAVE.format(leave=LEAVINGS[way]))
    talk = await Conversation().start(tmp_path, "h.py", spawner=spawner)
    await talk.next()
    parent = psutil.Process(talk.process.pid).ppid()
    if way in {"group", "fork"}:
        talk.process.kill()
    else:
        talk.process.send(Predict(0, [Row("a", 1)]), [b"x"])
    how = await asyncio.wait_for(talk.process.wait(), 10)
    if spawner is not None:
        await spawner.close()

    assert (parent == os.getpid()) is not forked
    assert how in {"was killed by SIGKILL", "exited with status 3"}
    # A killed process is there until the system has ended it.
    await gone(int(talk.process.last_output()))


async def test_what_is_not_the_workers_lives_on(tmp_path):
    code = LEAVINGS["session"].replace("True", "True, env={}")
    (tmp_path / "h.py").write_text(LEAVE.format(leave=code))
    first, second = Conversation(), Conversation()
    for talk in (first, second):
        await talk.start(tmp_path, "h.py")
        await talk.next()
    first.process.kill()
    await first.process.wait()
    second_lives = is_alive(second.process.pid)
    second.process.kill()
    await second.process.wait()
    daemons = [int(talk.process.last_output()) for talk in (first, second)]

    assert second_lives
    assert [is_alive(daemon) for daemon in daemons] == [True, True]
    for daemon in daemons:
        os.kill(daemon, signal.SIGKILL)
