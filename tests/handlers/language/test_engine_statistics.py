"""What an engine's steps become: printed metrics, now and then."""

import asyncio
import socket
import uuid
from types import SimpleNamespace

import pytest
from tests.handlers.language.vllm_bench import Bench
from tests.simulated_time import run

from modelserver.engine.pools.output import parse_metric
from modelserver_handlers.context import Context
from modelserver_handlers.language.engine_statistics import EngineStatistics

NAMES = ["EngineRunningRequests", "EngineWaitingRequests", "EngineCacheUsage", "EnginePrefixHitRate"]


def step(running, *, waiting=0, cache=0.0, queries=0, hits=0):
    """The scheduler's part of a step."""
    looked_up = SimpleNamespace(queries=queries, hits=hits)
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=1,
        kv_cache_usage=cache,
        prefix_cache_stats=looked_up,
    )


class Reports:
    """The reports of an engine, as the server reads them, with their times."""

    def __init__(self, gpu=None, folder=None):
        manifest = {"model": {"modelVersion": "2.0"}}
        # Of this model alone, whatever else runs.
        folder = folder or f"/{uuid.uuid4()}"
        self.times = []
        self.metrics = []
        self.statistics = EngineStatistics(Context("m", folder, manifest, 1, gpu, "0"), self._write)

    def _write(self, text):
        self.times.append(asyncio.get_running_loop().time())
        for line in text.splitlines():
            metric = parse_metric(line)
            self.metrics.append(metric)

    @property
    def values(self):
        """The last value of each."""
        return {metric.name: metric.value for metric in self.metrics}


def test_changes_are_reported_once_a_second():
    """The first at once, the last when the second is over, and nothing while nothing changes."""
    reports = Reports()

    async def steps():
        for number in range(1, 26):
            reports.statistics.record(step(number), None)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1000)
        reports.statistics.record(step(25), None)
        await asyncio.sleep(1000)

    run(steps())

    assert reports.times == pytest.approx([0, 1, 2, 3], abs=0.01)
    assert reports.values["EngineRunningRequests"] == 25
    assert len(reports.metrics) == 4 + 3, "only what has changed"


def test_figures_are_those_of_all_schedulers():
    """The hit rate is that of the tokens so far; preemptions are counted."""
    reports = Reports(gpu=1)

    async def steps():
        reports.statistics.record(step(3, cache=0.25, queries=30, hits=10), None)
        reports.statistics.record(step(2, waiting=4, cache=0.5, queries=10, hits=10), None, 1)
        reports.statistics.record(None, SimpleNamespace(num_preempted_reqs=2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(steps())

    assert [reports.values[name] for name in NAMES] == [5, 6, 50, 50]
    last = reports.metrics[-1]
    assert (last.name, last.value, last.kind) == ("EnginePreemptions", 2, "counter")
    assert dict(last.dimensions) == {
        "ModelName": "m",
        "Level": "Model",
        "ModelVersion": "2.0",
        "Hostname": socket.gethostname(),
        "Engine": "0",
        "DeviceId": "1",
    }


def test_hit_rate_is_that_of_late():
    reports = Reports()

    async def steps():
        reports.statistics.record(step(1, queries=10**6, hits=0), None)
        for _ in range(60):
            await asyncio.sleep(1)
            reports.statistics.record(step(1, queries=10**5, hits=10**5), None)
        await asyncio.sleep(2)

    run(steps())

    assert reports.values["EnginePrefixHitRate"] > 99


def test_engines_of_several_workers_have_labels_of_their_own():
    """Without a GPU as well, or their gauges would be one. What replaces an engine has its label."""

    def label(reports):
        run(reported(reports))
        return dict(reports.metrics[-1].dimensions)["Engine"]

    async def reported(reports):
        reports.statistics.reset()

    folder = f"/{uuid.uuid4()}"
    first, second = Reports(folder=folder), Reports(folder=folder)
    labels = [label(first), label(second)]
    run(closed(first))
    third, fourth = Reports(folder=folder), Reports(folder=folder)

    assert labels == ["0", "1"]
    assert [label(third), label(fourth)] == ["0", "2"]


async def closed(reports):
    reports.statistics.close()


async def test_handler_reports_its_engine(pretended_vllm, capsys):
    """From its start, when all is zero, to its end."""

    def read():
        metrics = [parse_metric(line) for line in capsys.readouterr().out.splitlines()]
        return {metric.name: metric.value for metric in metrics if metric is not None}

    bench = await Bench().start()
    at_first = read()
    await bench.whole()
    reported = read()
    await bench.handler._ms_close()

    assert at_first == dict.fromkeys(NAMES, 0.0)
    assert reported["EngineRunningRequests"] == 1
    assert reported["EngineCacheUsage"] == 25
    assert reported["EnginePrefixHitRate"] == 75
    assert read()["EngineRunningRequests"] == 0


async def test_statistics_can_be_turned_off(pretended_vllm, capsys):
    """As vLLM's own are."""
    bench = await Bench(vllm_engine_config={"disable_log_stats": True}).start()
    await bench.whole()

    assert bench.engine.loggers == []
    assert "EngineRunningRequests.Count:1" not in capsys.readouterr().out
