"""What is told of the models that a server begins with."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from modelserver.errors import StartFailed
from modelserver.first_loads import tell_first_loads

if TYPE_CHECKING:
    import pytest


def model(name: str, *loads: BaseException | None, wanted: int | None = None) -> Any:
    """A model whose workers have loaded, or have failed so."""
    workers = []
    for load in loads:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if load is None:
            future.set_result(None)
        else:
            future.set_exception(load)
            future.exception()
        workers.append(SimpleNamespace(first_load=future))
    failure = next((str(load) for load in loads if load is not None), "")
    ready = sum(load is None for load in loads)
    pool = SimpleNamespace(
        workers=workers,
        min_workers=len(loads) if wanted is None else wanted,
        failure=failure,
        statistics=lambda: SimpleNamespace(ready=ready),
    )
    return SimpleNamespace(name=name, pool=pool)


async def test_ready_models(caplog: pytest.LogCaptureFixture) -> None:
    """A line each, with the time since the start, to the operator and to the log."""
    said: list[str] = []
    caplog.set_level("INFO")

    assert await tell_first_loads([model("a", None, None), model("b")], said.append, time.monotonic() - 3.0)
    assert sorted(said) == ["a: 2/2 workers ready (3.0 s)", "b: 0/0 workers ready (3.0 s)"]
    assert [record.getMessage() for record in caplog.records] == said


async def test_models_that_fail() -> None:
    """The line says why; one of them is enough for a start that is not whole."""
    said: list[str] = []
    models = [model("a", None), model("b", StartFailed("no such file")), model("c", wanted=1)]

    assert not await tell_first_loads(models, said.append, time.monotonic())
    told = {line[0]: line for line in said}
    assert told["b"].startswith("b: 0/1 workers ready (0.")
    assert told["b"].endswith(" s): no such file")
    assert told["c"].endswith(": it is not known why")
