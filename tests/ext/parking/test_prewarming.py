from contextlib import AsyncExitStack

import pytest
from tests.ext.parking.conftest import MIB, Floor

from modelserver.ext.parking.forecast import PastUse
from modelserver.ext.parking.history import RecentUses
from modelserver.ext.parking.keeper import LOOKS
from modelserver.ext.parking.prewarming import EARLY, EVERY
from modelserver.ext.parking.room import MIN_RESIDENCE

DAY = 86_400.0


class PlayedUses(RecentUses):
    """Uses that began at these times, and lasted ten seconds."""

    def __init__(self, *began, requests=5):
        self._began, self._requests = began, requests

    def look(self, now, model):
        """There are no counters."""

    def uses(self, now, model):
        return [PastUse(now - at, now - at - 10.0, self._requests) for at in self._began]


def add_daily(floor, name, after, requests=5, **options):
    """A model that was used ``after`` seconds after now a day ago, for ten seconds."""
    resident = floor.add(name, prewarm=True, **options)
    resident.model.histories["uses"] = PlayedUses(floor.now + after - DAY, requests=requests)
    return resident


async def test_uses_of_models_with_the_option_count_from_the_registration_on(floor):
    models = [floor.add(name, prewarm=prewarm).model for name, prewarm in (("a", True), ("b", False))]

    assert [list(model.histories) for model in models] == [["uses"], []]


async def test_model_is_loaded_before_its_time(floor):
    """Neither much earlier, nor at all without the option."""
    resident = add_daily(floor, "a", after=600)
    add_daily(floor, "b", after=600)
    floor.keeper.residents[1].model.options.values["prewarm"] = False
    await floor.settle(600 - EARLY - EVERY - 1)
    assert floor.states() == {"a": "parked", "b": "parked"}
    await floor.settle(EVERY)
    process = await floor.load(1)
    assert floor.states() == {"a": "loaded", "b": "parked"}
    assert floor.keeper.describe()["prewarms"] == {"hit": 0, "miss": 0}
    floor.ask("a")
    await floor.answer(process)
    await floor.settle(LOOKS)

    assert floor.keeper.describe()["prewarms"] == {"hit": 1, "miss": 0}
    assert resident.describe()["prewarms"] == {"hit": 1}


@pytest.mark.parametrize("jump", [-3 * DAY, -1800.0, 1800.0, 3 * DAY])
async def test_model_is_loaded_in_time_though_the_clock_is_set(floor, jump):
    """Once: what was stored by the clock as it was before counts no more."""
    wall = 2e9
    floor.keeper.prewarming._wall = lambda: wall + floor.now
    add_daily(floor, "a", after=600, idle_timeout=20)
    await floor.settle(60)
    wall += jump
    await floor.settle(540 - EARLY - EVERY - 1)
    assert floor.states() == {"a": "parked"}
    await floor.settle(EVERY)
    await floor.load(1)
    for _ in range(100):
        await floor.settle(EVERY)

    assert floor.states() == {"a": "parked"}
    assert floor.keeper.describe()["prewarms"] == {"hit": 0, "miss": 1}


async def test_model_that_is_not_used_after_all_is_a_miss(floor):
    """It stays until its time is over, though it is idle, and is not loaded again for the same."""
    resident = add_daily(floor, "a", after=60, idle_timeout=20)
    await floor.settle()
    await floor.load(1)
    await floor.settle(50 + EARLY)
    assert floor.states() == {"a": "loaded"}
    for _ in range(5):
        await floor.settle(30)

    assert floor.states() == {"a": "parked"}
    assert resident.describe()["prewarms"] == {"miss": 1}
    assert len(floor.stage.processes) == 1


async def test_model_that_was_parked_for_memory_is_a_miss(floor):
    resident = add_daily(floor, "a", after=60)
    await floor.settle()
    await floor.load(1)
    resident.park()
    await floor.settle()
    await floor.settle(EVERY)

    assert floor.states() == {"a": "parked"}
    assert resident.describe()["prewarms"] == {"miss": 1}


async def test_used_model_that_is_expected_again_stays(floor):
    """It would be parked and loaded again."""
    add_daily(floor, "a", after=100, idle_timeout=20)
    await floor.use(1, "a")
    await floor.settle(25)
    assert floor.states() == {"a": "loaded"}
    await floor.settle(200)

    assert floor.states() == {"a": "parked"}
    assert floor.keeper.describe()["prewarms"] == {"hit": 0, "miss": 0}


@pytest.mark.parametrize(("requests", "state"), [(1, "parked"), (50, "loaded")])
async def test_only_less_valuable_models_make_room(floor, requests, state):
    floor.budgets.machine.limit = 150 * MIB
    await floor.use(1, "used", 6)
    await floor.settle(MIN_RESIDENCE)
    add_daily(floor, "a", after=60, requests=requests)
    await floor.settle()
    if state == "loaded":
        await floor.load(2)

    assert floor.states() == {"used": "parked" if state == "loaded" else "loaded", "a": state}


async def test_waiting_requests_come_first(floor):
    floor.budgets.machine.limit = 100 * MIB
    add_daily(floor, "a", after=60, requests=1000)
    floor.ask("b")
    await floor.settle()

    assert floor.states() == {"a": "parked", "b": "loading"}


async def test_model_that_fails_to_load_ahead_is_a_miss(floor):
    """Requests that come then get its reason, as after any failed load."""
    resident = add_daily(floor, "a", after=60)
    await floor.settle()
    (await floor.stage.enter(1)).fail_to_load("no such file")
    await floor.settle()
    assert floor.states() == {"a": "failed"}
    await floor.settle(2)

    assert resident.describe()["prewarms"] == {"miss": 1}
    assert floor.states() == {"a": "parked"}


async def test_unregistered_model_is_forgotten(floor):
    add_daily(floor, "a", after=60)
    floor.budgets.machine.limit = MIB
    await floor.settle()
    assert floor.keeper.prewarming.coming(floor.now) == floor.keeper.residents
    await floor.pools["a"].close(0.0)
    await floor.settle()

    assert floor.keeper.prewarming.coming(floor.now) == []


async def test_restart_does_not_forget_when_a_model_is_used(stage, times, tmp_path):
    """The next server has the history of the one before, by the time of the day."""
    async with AsyncExitStack() as stack:

        def start(wall):
            floor = Floor(stage, times, tmp_path)
            stack.push_async_callback(floor.close)
            floor.keeper.prewarming.history.load()
            begin = floor.now
            floor.keeper.prewarming._wall = lambda: wall + floor.now - begin
            return floor

        def add(floor, name, *began):
            floor.add(name, prewarm=True).model.histories["uses"] = PlayedUses(*began)

        first = start(wall=2e9)
        add(first, "a", first.now - 10)
        await first.keeper.close()
        second = start(wall=2e9 + DAY - 600)
        for name in "ab":
            add(second, name)
        await second.settle(600 - EARLY - EVERY - 12)
        assert second.states() == {"a": "parked", "b": "parked"}
        await second.settle(EVERY)
        await second.load(1)

        assert second.states() == {"a": "loaded", "b": "parked"}
