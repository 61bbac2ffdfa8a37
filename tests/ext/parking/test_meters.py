def lines(floor, *words):
    """Series with one of these words in their names, without the prefix."""
    text = b"".join(floor.metrics.pieces()).decode().replace("modelserver_", "").replace('model_name="', "")
    return {line for line in text.splitlines() if line[0] != "#" and any(word in line for word in words)}


async def test_models_have_metrics_until_they_are_unregistered(floor):
    meters = floor.meters
    meters.show(floor.keeper.residents, lambda: 5.0)
    for name in ("a", "b"):
        floor.add(name, gpus=(0,))
    resident = floor.keeper.residents[0]
    resident.model.metrics.series.show()
    resident.memory, resident.device_memory = 2, {0: 3}
    meters.loaded(resident.model, cold=4, seconds=0.5)
    meters.failed(resident.model)
    meters.parked(resident.model, "idle")

    version = 'a",model_version="1.0"'
    assert lines(
        floor, "loads_", "load_seconds_sum", "parks_", "cold_", "_memory_bytes", "models_memory"
    ) == {
        f'loads_total{{{version},result="loaded"}} 1.0',
        f'loads_total{{{version},result="failed"}} 1.0',
        f"load_seconds_sum{{{version}}} 0.5",
        f'parks_total{{{version},reason="idle"}} 1.0',
        f"cold_requests_total{{{version}}} 4.0",
        f"model_memory_bytes{{{version}}} 2.0",
        f'model_device_memory_bytes{{{version},gpu_id="0"}} 3.0',
        "models_memory_limit_bytes 5.0",
    }
    floor.ask("a")
    await floor.settle()
    counts = {"parked": 1, "waiting": 0, "loading": 1, "loaded": 0, "failed": 0}
    assert lines(floor, "on_demand_models") == {
        f'on_demand_models{{state="{state}"}} {float(count)}' for state, count in counts.items()
    }
    floor.metrics.forget("a", "1.0")
    floor.keeper.residents.remove(resident)
    assert lines(floor, 'a",model_version', "limit") >= {"models_memory_limit_bytes 5.0"}
    assert lines(floor, "loads_", "parks_", "cold_", "_memory_bytes") == set()
