from types import SimpleNamespace

import pytest

from modelserver.ext.parking.budgets import Budget
from modelserver.ext.parking.room import Occupancy, Room

MACHINE, GPU = Budget(100), Budget(100, 0)


class Model:
    """A model that has so much of the machine and of the GPU, and is worth so much in both."""

    def __init__(self, machine, gpu=0, value=1.0, state="loaded"):
        self.sizes = {MACHINE: machine, GPU: gpu}
        self.value = value
        crew = SimpleNamespace(leaving=[1] if state == "leaving" else [])
        self.pool = SimpleNamespace(workers=[1] if state in ("loaded", "busy") else [], crew=crew)
        self.may_park = state == "loaded"
        self.loaded_at = 0.0


class FixedBudgets:
    """What models have is what they need."""

    def of(self, model):
        return [budget for budget, size in model.sizes.items() if size]

    def occupied(self, model, budget):
        return model.sizes[budget]

    need = occupied

    def value(self, model, budget, now):
        return model.value


def look(*models, now=10.0, **options):
    budgets = FixedBudgets()
    occupancy = Occupancy(budgets)
    for each in models:
        occupancy.follow(each)
    return Room(budgets, occupancy, now, **options)


SMALL, LARGE, BOTH = Model(10, 0, 1.0), Model(60, 0, 2.0), Model(20, 50, 3.0)
BUSY, LEAVING = Model(10, 40, 0.0, "busy"), Model(10, 0, 0.0, "leaving")


def test_everything_that_has_memory_counts():
    room = look(SMALL, BOTH, BUSY, LEAVING, Model(70, 70, state="parked"))

    assert room.used == {MACHINE: 50, GPU: 90}
    assert room.leaving == {MACHINE: 10}
    assert room.missing(Model(50, 20)) == {GPU: 10}


@pytest.mark.parametrize(
    ("missing", "victims"),
    [
        ({MACHINE: 10}, []),  # what leaves is enough
        ({MACHINE: 20}, [SMALL]),
        ({MACHINE: 30}, [LARGE]),  # then the smaller one stays
        ({MACHINE: 90}, [LARGE, BOTH]),
        ({GPU: 1}, [BOTH]),
        ({GPU: 50, MACHINE: 30}, [BOTH]),  # which frees enough of both
        ({GPU: 50, MACHINE: 40}, [BOTH, SMALL]),
        ({GPU: 51}, None),  # the busy one stays
        ({MACHINE: 10, GPU: 51}, None),
    ],
)
def test_victims_free_enough_of_each_budget(missing, victims):
    assert look(SMALL, LARGE, BOTH, BUSY, LEAVING).victims(missing) == victims


def test_young_models_stay():
    assert look(SMALL, now=9.0).victims({MACHINE: 1}) is None
    assert look(SMALL, now=9.0, residence=0.0).next_to_park(MACHINE) is SMALL


def test_more_valuable_models_stay():
    room = look(SMALL, LARGE)
    assert room.victims({MACHINE: 11}, {MACHINE: 2.0}) is None
    assert room.victims({MACHINE: 10}, {MACHINE: 2.0}) == [SMALL]


def test_victims_leave_once():
    """What was promised to one model is not there for the next."""
    room = look(SMALL, LARGE, BUSY)
    coming = Model(80, 0)
    assert room.victims(room.missing(coming)) == [LARGE]
    room.take(coming)

    assert room.missing(Model(10, 0)) == {MACHINE: 70}
    assert room.victims({MACHINE: 70}) == [SMALL]
    assert room.victims({MACHINE: 71}) is None


def test_excess_is_what_can_be_parked():
    assert look(SMALL).excess(MACHINE) == 0
    assert look(LARGE, BUSY, Model(50, 0, state="leaving")).excess(MACHINE) == 0
    assert look(LARGE, Model(80, 0, state="busy")).excess(MACHINE) == 40
    assert look(SMALL, Model(180, 0, state="busy")).excess(MACHINE) == 10
