"""The process that forks workers."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from modelserver.pools import spawner as spawner_module
from modelserver.pools.preload_reader import PreloadReader
from modelserver.pools.preloading import Preload
from modelserver.pools.process import WorkerProcess, launch
from modelserver.pools.spawner import Spawner, can_fork, why_not
from modelserver.pools.spec import WorkerSpec
from modelserver.wire.messages import Load, Loaded, Predict, Row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.skipif(not can_fork(), reason="the system cannot fork workers safely")

# A light module that is taken for heavy: what is tested here is not torch.
_HEAVY = "colorsys"


class Conversation:
    """A worker process and what it says."""

    def __init__(self, spawner: Spawner | None) -> None:
        self.spawner = spawner
        self.messages: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()
        self.lost: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.process: WorkerProcess

    async def start(self, model_dir: Path, **fields: Any) -> Conversation:
        fields.setdefault("threads", 1)
        load = Load("m", "1.0", str(model_dir), "h.py", 2)
        spec = WorkerSpec(load=load, frame_limit=1 << 20, spawner=self.spawner, **fields)
        self.process = await launch(
            spec,
            "W-1-m",
            lambda m, tail: self.messages.put_nowait((m, bytes(tail))),
            self.lost.set_result,
        )
        return self

    async def next(self) -> tuple[Any, bytes]:
        return await asyncio.wait_for(self.messages.get(), 20)

    async def told(self) -> dict[str, Any]:
        """What the handler says of its process."""
        self.process.send(Predict(0, [Row("a", 1)]), [b"x"])
        _, tail = await self.next()
        answer: dict[str, Any] = json.loads(tail)
        return answer

    def parent(self) -> int:
        return psutil.Process(self.process.pid).ppid()


@pytest.fixture
async def spawner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spawner]:
    """A spawner that takes a light module for a heavy one."""
    monkeypatch.setattr("modelserver.pools.preloading.HEAVY", frozenset({_HEAVY}))
    made = Spawner()
    yield made
    await made.close()


def preloaded(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Has this module imported for all models, though none of them names it."""

    async def preload_of(self: PreloadReader, model_dir: Path, handler: str) -> Preload:
        return Preload((module,), "")

    monkeypatch.setattr(PreloadReader, "preload_of", preload_of)


@pytest.mark.parametrize("file", ["codeop.py", "codeop/__init__.py"])
async def test_modules_of_the_model_come_first(spawner: Spawner, tmp_path: Path, file: str) -> None:
    """Where the spawner has loaded a module of a name that the model uses too, the model gets its own."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine = True\n")
    (tmp_path / "h.py").write_text(
        f"import {_HEAVY}\ndef handle(data, context):\n    import codeop; codeop.mine\n"
    )
    # It loads codeop.
    other = tmp_path / "other"
    other.mkdir()
    (other / "h.py").write_text(f"import {_HEAVY}, code\ndef handle(data, context):\n    return data\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modelserver.pools.preloading.HEAVY", frozenset({_HEAVY, "code"}))
        before = await Conversation(spawner).start(other)
    talk = await Conversation(spawner).start(tmp_path)
    outcome, _ = await talk.next()

    assert before.parent() != os.getpid()
    assert talk.parent() == os.getpid()
    assert isinstance(outcome, Loaded)
    for each in (before, talk):
        each.process.kill()
        await each.process.wait()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "1 thread",
        ),
        ("import os\nos.pipe()", "descriptors"),
        ("raise ValueError('broken')", "ValueError while importing unfit"),
    ],
)
async def test_an_unfit_spawner_refuses(
    spawner: Spawner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str,
    reason: str,
) -> None:
    """With threads or strange descriptors it does not fork; workers start plainly, and one line says why."""
    packages = tmp_path / "packages"
    model = tmp_path / "model"
    packages.mkdir()
    model.mkdir()
    (packages / "unfit.py").write_text(source)
    (model / "h.py").write_text("def handle(data, context):\n    return data\n")
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    preloaded(monkeypatch, "unfit")
    caplog.set_level("INFO", "modelserver.workers")
    for _ in range(2):
        talk = await Conversation(spawner).start(model)
        outcome, _ = await talk.next()
        assert isinstance(outcome, Loaded)
        assert talk.parent() == os.getpid()
        talk.process.kill()
        await talk.process.wait()

    (line,) = [r.getMessage() for r in caplog.records if "not forked" in r.getMessage()]
    assert reason in line


def spec(**fields: Any) -> WorkerSpec:
    return WorkerSpec(load=Load("m", "1.0", "/", "h.py", 1), frame_limit=100, **{"threads": 3, **fields})


def test_who_may_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with another Python, nor with variables that count before anything is imported."""
    for name in spawner_module.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    assert why_not(spec(extra_environment={"CUDA_VISIBLE_DEVICES": "1"})) == ""
    assert "Python of their own" in why_not(spec(python="/usr/bin/python3"))
    assert "LD_PRELOAD must" in why_not(spec(extra_environment={"LD_PRELOAD": "x.so"}))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "one and the same" in why_not(spec())
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    assert why_not(spec()) == ""
    for name in spawner_module.THREAD_VARIABLES:
        monkeypatch.setenv(name, "4,2")
    assert "one and the same" in why_not(spec())
