import asyncio
import importlib
import os
import signal
import sys
import venv
from pathlib import Path

import psutil
import pytest
from tests.engine.pools.conftest import Conversation, PlayedProcess
from tests.waiting import until

from modelserver.engine.pools import process as process_module
from modelserver.engine.pools.memory_kills import NOTICED, MemoryKills
from modelserver.engine.pools.process import describe_exit, started
from modelserver.engine.wire.messages import Loaded, LoadFailed, Predict, Row, Stop
from modelserver.engine.worker.elsewhere import NEEDED


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL"),
        (-200, "was killed by signal 200"),
    ],
)
def test_an_exit_code_is_described_in_words(code, words):
    """An exit code is described in words (design 6)."""
    assert describe_exit(code) == words


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def handle(data, context):\n    len(1)\n", "len()"),
        (
            "def handle(data, context):\n    raise __import__('pickle').UnpicklingError('refused')\n",
            "refused",
        ),
        ("print('first')\nimport absent_module\n", "No module named 'absent_module'"),
    ],
    ids=["wrong call", "weights that torch refuses", "import"],
)
async def test_failures_that_no_retry_can_mend(tmp_path, source, message):
    """They are reported before the process leaves, with their place, and not tried again (F40)."""
    (tmp_path / "h.py").write_text(source)
    talk = await Conversation().start(tmp_path, "h.py")
    failed, _ = await talk.next()
    how = await talk.process.wait()

    assert isinstance(failed, LoadFailed)
    assert failed.permanent
    assert message in failed.message
    assert how == "exited with status 1"
    assert "h.py" in talk.process.last_output()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no memory that both sides share")
async def test_started_batches_are_known_after_the_end(tmp_path):
    """After a kill the number of begun batches is known; those that were not read do not count (F39)."""
    (tmp_path / "h.py").write_text(
        "import time\ndef handle(data, context):\n    if data and bytes(data[0]['body']) == b's':\n"
        "        print('begun', flush=True)\n        time.sleep(60)\n    return [b''] * len(data or [])\n"
    )
    talk = await Conversation().start(tmp_path, "h.py")
    await talk.next()
    talk.process.send(Predict(7, [Row("a", 1)]), [b"x"])
    await talk.next()
    for sequence in (8, 9):
        talk.process.send(Predict(sequence, [Row("a", 1)]), [b"s"])
    await until(lambda: "begun" in talk.process.last_output())
    before = talk.process.batches_started
    talk.process.kill()
    await talk.process.wait()

    assert (before, talk.process.batches_started) == (None, 9)


async def test_a_dead_process_starts_nothing_that_comes_later(tmp_path):
    """What is written to a process that was killed a moment before was never begun (F39)."""
    (tmp_path / "h.py").write_text("def handle(data, context):\n    return data\n")
    talk = await Conversation().start(tmp_path, "h.py")
    await talk.next()
    os.kill(talk.process.pid, signal.SIGKILL)
    talk.process.send(Predict(0, [Row("a", 1)]), [b"x"])
    await talk.process.wait()

    assert talk.process.batches_started == (0 if sys.platform == "linux" else None)


async def test_missing_python_cannot_be_started(tmp_path):
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="No such file"):
        await Conversation().start(tmp_path, "h.py", python=str(tmp_path / "python"))

    assert psutil.Process().num_fds() <= before + 1


async def test_process_answers_under_another_python(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "other", symlinks=True)
    (packages,) = (tmp_path / "other").glob("lib/python*/site-packages")
    for name in NEEDED:
        (packages / name).symlink_to(Path(importlib.import_module(name).__file__ or "").parent)
    (tmp_path / "h.py").write_text(
        "import sys\nfrom ts.context import Context\n"
        "def handle(data, context):\n    return [sys.prefix for row in data or []]\n"
    )
    talk = await Conversation().start(tmp_path, "h.py:handle", python=str(tmp_path / "other/bin/python"))
    loaded, _ = await talk.next()
    talk.process.send(Predict(0, [Row("a", 1)]), [b"x"])
    _, tail = await talk.next()
    talk.process.send(Stop())
    await talk.process.wait()

    assert isinstance(loaded, Loaded)
    assert tail == str(tmp_path / "other").encode()


async def test_process_without_an_arena_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module.Arena, "create", lambda: None)
    (tmp_path / "h.py").write_text("def handle(data, context):\n    return [r['body'] for r in data or []]\n")
    talk = await Conversation().start(tmp_path, "h.py:handle", frame_limit=1 << 28)
    await talk.next()
    body = os.urandom(1_000_000)
    talk.process.send(Predict(0, [Row("a", len(body))]), [body])
    _, tail = await talk.next()
    talk.process.kill()

    assert tail == body
    assert (await talk.process.wait()).startswith("was killed by SIGKILL")


class Group:
    """A control group that counts, and a clock."""

    def __init__(self, count=7):
        self.count = count
        self.now = 0.0
        self.kills = MemoryKills(lambda: self.count, lambda: self.now)

    def kill(self):
        assert self.count is not None
        self.count += 1


def test_kill_explains_one_end_at_its_time():
    """A kill before the server or long ago explains nothing, nor does a group that does not count (F43)."""
    group = Group()
    assert group.kills.claim() is False
    group.kill()

    assert [group.kills.claim(), group.kills.claim()] == [True, False]

    group = Group()
    group.kill()
    for _ in range(2):
        group.now += NOTICED
        group.kills.look()

    assert group.kills.claim() is False

    group = Group()
    group.now += NOTICED + 1
    group.kill()
    group.kills.look()
    group.now += NOTICED - 1
    group.kills.look()

    assert group.kills.claim() is True

    assert Group(None).kills.claim() is None


async def test_a_start_cancelled_twice_leaves_no_process():
    """Two requests that remove a model may stop a worker, the second just as its process has started."""
    process = PlayedProcess(1000, lambda *_: None, lambda _: None)
    may_start = asyncio.Event()

    async def start():
        await may_start.wait()
        return process

    launching = asyncio.create_task(start())
    starting = asyncio.create_task(started(launching, is_quick=True))
    launching.add_done_callback(lambda _: starting.cancel())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.sleep(0)
    may_start.set()

    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: process.killed)
