import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import InternalError
from modelserver.ext.console.minutes import ALL, COLUMNS, DAY, MINUTE, Minutes


class Clock:
    def __init__(self):
        self.now = 1e6

    def __call__(self):
        return self.now


class Site:
    def __init__(self):
        self.clock = Clock()
        self.models: dict[str, Any] = {}
        registry = SimpleNamespace(versions=lambda: list(self.models.values()))
        self.minutes = Minutes(registry, self.clock)

    def register(self, name):
        """A model, or another in its place."""
        metrics = ServerMetrics().model(name, "1.0")
        pool = SimpleNamespace(workers=[None])
        self.models[name] = SimpleNamespace(name=name, version="1.0", metrics=metrics, pool=pool)

    def serve(self, name, count, seconds=0.02):
        metrics = self.models[name].metrics
        for _ in range(count):
            metrics.requests.answered(seconds, 0.001, False)
            metrics.batches.finished(1, 1, 2, "idle", seconds, (0.0, 0.0, 0.0))

    async def pass_minute(self):
        self.clock.now += MINUTE
        await self.minutes.look()

    async def read(self, key, span=DAY):
        document = json.loads(await self.minutes.document(key, span))
        assert list(document["series"]) == list(COLUMNS)
        assert {len(each) for each in document["series"].values()} == {len(document["ages"])}
        return document


def steps_of(coroutine):
    """What it waits for."""
    return (yield from coroutine.__await__())


@pytest.fixture
def site():
    made = Site()
    for name in ("a", "b"):
        made.register(name)
    return made


async def test_a_minute_has_rates_and_latencies(site):
    """Of a version what it did, of all together what all did; a minute without requests has no row."""
    site.serve("a", 60)
    site.models["a"].metrics.requests.failed(InternalError("no"), "r")
    site.models["b"].metrics.requests.rejected("queue_full")
    await site.pass_minute()
    await site.pass_minute()
    site.serve("b", 120, 0.5)
    await site.pass_minute()
    a, b, everything = [await site.read(key) for key in ("a/1.0", "b/1.0", ALL)]

    assert (a["ages"], b["ages"], everything["ages"]) == ([120], [120, 0], [120, 0])
    assert a["age"] == 180
    assert (a["series"]["rate"], a["series"]["errors"], a["series"]["lost"]) == ([1], [0.01667], [0])
    assert 15 < a["series"]["p50"][0] <= a["series"]["p99"][0] <= 20
    assert (a["series"]["size"], a["series"]["fill"], a["series"]["busy"]) == ([1], [50], [2])
    assert b["series"]["rate"] == [0, 2]
    assert b["series"]["p50"][0] is None
    assert everything["series"]["rate"] == [1, 2]
    assert everything["series"]["lost"] == [0.01667, 0]
    assert everything["series"]["busy"] == [1, 50]


async def test_the_minute_under_way_is_there(site):
    """Once it is long enough to say something; reading it does not end it."""
    site.serve("a", 30)
    site.clock.now += 1
    early = await site.read("a/1.0")
    site.clock.now += 29
    during = [await site.read(key) for key in ("a/1.0", ALL, "b/1.0", "none/1.0")]
    site.clock.now += 30
    await site.minutes.look()

    assert early["ages"] == []
    assert [each["series"]["rate"] for each in during] == [[1], [1], [], []]
    assert (await site.read("a/1.0"))["series"]["rate"] == [0.5]


async def test_a_span_has_its_minutes(site):
    for count in (60, 120, 180):
        site.serve("a", count)
        await site.pass_minute()

    assert (await site.read("a/1.0", 90))["series"]["rate"] == [2, 3]
    assert (await site.read("a/1.0", 0))["series"]["rate"] == [3]


async def test_what_is_old_or_removed_leaves(site):
    """After a day, or with the version; nothing is left of one that was not used for a day but its counts."""
    site.serve("a", 60)
    site.serve("b", 60)
    await site.pass_minute()
    del site.models["b"]
    await site.pass_minute()
    assert (await site.read("b/1.0"))["ages"] == []
    assert (await site.read("a/1.0"))["ages"] == [60]
    site.clock.now += DAY
    await site.minutes.look()
    assert (await site.read("a/1.0"))["ages"] == (await site.read(ALL))["ages"] == []
    assert site.minutes._rows == {}
    site.serve("a", 60)
    await site.pass_minute()

    assert (await site.read("a/1.0"))["series"]["rate"] == [1]


async def test_a_version_that_is_replaced_counts_anew(site):
    """Rates never are negative."""
    site.serve("a", 600)
    await site.pass_minute()
    site.register("a")
    await site.pass_minute()
    site.serve("a", 60)
    await site.pass_minute()

    assert (await site.read("a/1.0"))["series"]["rate"] == [10, 1]


async def test_a_late_look_is_a_longer_minute(site):
    """Its rates are averages of it."""
    site.serve("a", 60)
    site.clock.now += 600
    await site.minutes.look()

    assert (await site.read("a/1.0"))["series"]["rate"] == [0.1]


async def test_a_day_of_a_busy_version_is_small(site):
    """At most 200 kB in memory, with what it had counted, and as much in an answer."""
    for _ in range(2 * 1440):
        site.serve("a", 1)
        await site.pass_minute()
    rows = site.minutes._rows["a/1.0"]
    counts = site.minutes._counts["a/1.0"][1]
    total = sum(map(sys.getsizeof, (rows.ends, *rows.columns, counts)))

    assert 1440 <= len(rows.ends) <= 1441
    assert total < 200_000
    assert len(await site.minutes.document("a/1.0", DAY)) < 200_000


async def test_a_version_that_is_never_used_has_nothing(site):
    for _ in range(3):
        await site.pass_minute()

    assert (site.minutes._rows, site.minutes._counts) == ({}, {})


async def test_many_versions_do_not_hold_the_loop_up(site, monkeypatch):
    """The event loop runs other work between versions, and between columns."""
    monkeypatch.setattr("modelserver.ext.console.stopwatch.STRETCH", 0.0)
    coroutines = [site.minutes.look(), site.minutes.document(ALL, DAY)]
    turns = [len(list(steps_of(coroutine))) for coroutine in coroutines]

    assert turns == [2, len(COLUMNS)]


async def test_the_history_goes_on_after_a_look_that_failed(site, monkeypatch, caplog):
    """It is logged, and the next one is a minute later."""
    monkeypatch.setattr("modelserver.ext.console.minutes.MINUTE", 0.0)
    failures = iter([RuntimeError("no registry")])
    plain = site.minutes._registry.versions

    def versions():
        site.clock.now += MINUTE
        for failure in failures:
            raise failure
        return plain()

    monkeypatch.setattr(site.minutes._registry, "versions", versions)
    site.serve("a", 60)
    running = asyncio.ensure_future(site.minutes.run())
    try:
        await until(lambda: "a/1.0" in site.minutes._rows)
    finally:
        running.cancel()

    assert [each.getMessage() for each in caplog.records] == ["The console's history could not be continued"]
