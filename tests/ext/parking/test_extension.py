from types import SimpleNamespace
from typing import Any

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.parking.extension import Extension
from modelserver.ext.parking.keeper import Keeper


async def test_first_model_on_demand_makes_the_keeper(floor, monkeypatch):
    """Which is closed with the server; without such a model there is none."""
    closed: list[Keeper] = []

    async def close(keeper: Keeper) -> None:
        closed.append(keeper)

    monkeypatch.setattr(Keeper, "close", close)
    prepared: list[Any] = []
    host = SimpleNamespace(
        prepare=prepared.append,
        run=lambda _: None,
        routes=lambda *_: None,
        services=SimpleNamespace(metrics=ServerMetrics(hostname="h")),
        settings=SimpleNamespace(max_models_memory=1 << 30, max_device_memory=0),
    )
    extension = Extension()
    await extension.open(host)
    model = floor.add("a", load="at-start").model
    prepared[0](model)
    await extension.close(1.0)
    assert closed == []
    model = floor.add("b").model
    prepared[0](model)
    await extension.close(1.0)

    assert [each.model for keeper in closed for each in keeper.residents] == [model]
