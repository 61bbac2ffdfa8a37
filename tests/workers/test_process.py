from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from modelserver.wire.messages import Answer, Load, Loaded, LoadFailed, Predict, Result, Row, Stop
from modelserver.workers.process import WorkerSpec, describe_exit, launch

if TYPE_CHECKING:
    from pathlib import Path


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
def test_describe_exit(code: int, words: str) -> None:
    """An exit code is told in words (design 6)."""
    assert describe_exit(code) == words


def spec(**fields: Any) -> WorkerSpec:
    return WorkerSpec(load=Load("m", "1.0", "/", "h.py", 1), threads=3, frame_limit=100, **fields)


def test_environment() -> None:
    """Workers get the server's environment with thread counts, without what is hidden
    (reference 12.1, F68).
    """
    hidden = re.compile("SECRET.*|PASS")
    environment = spec(hidden_variables=hidden, extra_environment={"RANK": "0"}).environment(
        {"PATH": "/bin", "SECRET_KEY": "1", "PASS": "2", "PASSAGE": "3", "MKL_NUM_THREADS": "9"}
    )

    assert environment == {
        "PATH": "/bin",
        "PASSAGE": "3",
        "MKL_NUM_THREADS": "9",
        "OMP_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
        "PYTHONUNBUFFERED": "1",
        "TS_DECODE_INPUT_REQUEST": "true",
        "TS_IPEX_ENABLE": "false",
        "TS_IPEX_GPU_ENABLE": "false",
        "RANK": "0",
    }


class Conversation:
    """A real worker process and what it says."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()
        self.lost: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def start(self, model_dir: Path, handler: str, **fields: Any) -> Conversation:
        load = Load("m", "1.0", str(model_dir), handler, 2)
        worker_spec = WorkerSpec(load=load, threads=1, frame_limit=1 << 20, **fields)
        self.process = await launch(
            worker_spec,
            "W-1-m",
            lambda m, tail: self.messages.put_nowait((m, bytes(tail))),
            self.lost.set_result,
        )
        return self

    async def next(self) -> tuple[Any, bytes]:
        return await asyncio.wait_for(self.messages.get(), 20)


async def test_conversation(tmp_path: Path) -> None:
    """A process loads its model, answers batches, and leaves when it is told to; its output is captured."""
    (tmp_path / "h.py").write_text(
        "import os\nprint('importing', flush=True)\n"
        "def handle(data, context):\n    return [bytes(row['body']) + b'!' for row in data or []]\n"
    )
    talk = await Conversation().start(tmp_path, "h.py:handle")
    loaded, _ = await talk.next()
    talk.process.send(Predict(0, [Row("a", 1), Row("b", 1)]), [b"x", b"y"])
    result, tail = await talk.next()
    line = psutil.Process(talk.process.pid).cmdline()
    talk.process.send(Stop())
    how = await talk.process.wait()

    assert isinstance(loaded, Loaded)
    assert isinstance(result, Result)
    assert [type(answer) for answer in result.answers] == [Answer, Answer]
    assert tail == b"x!y!"
    assert (how, talk.process.last_output()) == ("exited with status 0", "importing")
    assert line[-1] == str(os.getpid())
    assert await talk.lost is None


async def test_failure_to_load(tmp_path: Path) -> None:
    """A handler that cannot be imported is reported before the process leaves, with its place (F40)."""
    (tmp_path / "h.py").write_text("print('first')\nimport absent_module\n")
    talk = await Conversation().start(tmp_path, "h.py")
    failed, _ = await talk.next()
    how = await talk.process.wait()

    assert isinstance(failed, LoadFailed)
    assert failed.permanent
    assert "No module named 'absent_module'" in failed.message
    assert how == "exited with status 1"
    assert "h.py" in talk.process.last_output()


async def test_kill(tmp_path: Path) -> None:
    """A killed process is gone, and killing it again does no harm."""
    (tmp_path / "h.py").write_text("def handle(data, context):\n    return data\n")
    talk = await Conversation().start(tmp_path, "h.py")
    await talk.next()
    talk.process.kill()
    how = await talk.process.wait()
    talk.process.kill()

    assert how.startswith("was killed by SIGKILL")
    assert not psutil.pid_exists(talk.process.pid)


GRANDCHILD = """
import subprocess, sys
code = "import time; time.sleep(30)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session={own_session})
print(child.pid, flush=True)
def handle(data, context):
    return data
"""


@pytest.mark.parametrize("own_session", [False, True])
async def test_grandchild(tmp_path: Path, own_session: bool) -> None:
    """What user code started ends with its worker; one that left the session is not waited for (F45)."""
    (tmp_path / "h.py").write_text(GRANDCHILD.format(own_session=own_session))
    talk = await Conversation().start(tmp_path, "h.py")
    await talk.next()
    talk.process.kill()
    how = await asyncio.wait_for(talk.process.wait(), 4)
    grandchild = int(talk.process.last_output())

    assert how.startswith("was killed by SIGKILL")
    await talk.lost
    if own_session:
        assert is_running(grandchild)
        os.kill(grandchild, signal.SIGKILL)
    for _ in range(1000):
        if not is_running(grandchild):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the grandchild lives on")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_no_such_python(tmp_path: Path) -> None:
    """A Python that is not there is an error of the start, and leaves no descriptors open."""
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="No such file"):
        await Conversation().start(tmp_path, "h.py", python=str(tmp_path / "python"))

    assert psutil.Process().num_fds() <= before + 1
