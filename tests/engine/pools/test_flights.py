from unittest.mock import Mock

import pytest
from tests.engine.pools.conftest import PlayedProcess

from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.engine.pools.flights import MAX_IN_FLIGHT, Flights
from modelserver.engine.pools.spec import Node
from modelserver.engine.wire.messages import Answer, Cancelled, Loaded, Recalled, Result, Row


def batch():
    return Batch([Parcel(Request("id", [Row("id", 4)], [b"body"], 0.0), 0, 1)], 1, "size")


def answer(number, seconds=0.01):
    return Result(number, [Answer(0)], seconds)


def fly(process, concurrency=0):
    flights = Flights(concurrency)
    flights.started(process)
    flights.loaded(Loaded())
    return flights


@pytest.fixture
async def process():
    return PlayedProcess(1000, lambda *_: None, lambda _: None)


@pytest.mark.parametrize(
    ("distant", "concurrency", "idempotent", "failed", "started", "count"),
    [
        pytest.param(False, 0, False, False, 0, 0, id="reported-none"),
        pytest.param(False, 0, False, False, 2, 2, id="reported-two"),
        pytest.param(True, 0, False, False, 1, 1, id="reported-from-elsewhere"),
        pytest.param(False, 0, False, False, None, 1, id="one-at-a-time"),
        pytest.param(False, 3, False, False, None, 3, id="concurrent"),
        pytest.param(True, 0, False, False, None, 3, id="out-of-reach"),
        pytest.param(True, 0, True, False, None, 0, id="out-of-reach-idempotent"),
        pytest.param(True, 0, True, True, None, 1, id="too-slow-idempotent"),
    ],
)
async def test_only_what_has_started_is_lost(
    process, distant, concurrency, idempotent, failed, started, count
):
    """Other batches go elsewhere; where nobody knows, all count, unless batches may run twice (F39)."""
    if distant:
        process.node = Node("elsewhere")
    flights = fly(process, concurrency)
    sent = [batch() for _ in range(3)]
    for each in sent:
        flights.send(each)

    assert flights.lost(started, idempotent=idempotent, failed=failed) == (sent[:count], sent[count:])
    assert not flights.in_flight


@pytest.mark.parametrize(
    ("endpoints", "count"), [({"v1/chat/completions": False}, 1), ({"*": False}, 2), ({}, 2)]
)
async def test_answers_that_have_not_started_may_be_generated_again(process, endpoints, count):
    flights = fly(process)
    flights.loaded(Loaded(concurrency=8, endpoints=endpoints))
    sent = [batch() for _ in range(2)]
    for each in sent:
        flights.send(each)
    sent[0].parcels[0].request.began = 1.0

    assert flights.lost(None, idempotent=False, failed=True) == (sent[:count], sent[count:])


async def test_capacity_follows_the_cost_but_for_concurrent_workers(process):
    flights = fly(process)
    capacities = [flights.capacity]
    for number, seconds in enumerate([0.00001] * 100 + [0.1]):
        flights.send(batch())
        flights.answered(answer(number, seconds))
        capacities.append(flights.capacity)

    assert (capacities[0], capacities[100], capacities[101]) == (2, MAX_IN_FLIGHT, 2)

    concurrent = fly(process, 3)
    for number in range(2):
        concurrent.send(batch())
        concurrent.answered(answer(number, 0.00001))

    assert (concurrent.capacity, concurrent.shared_capacity, concurrent.has_reserve) == (3, 3, False)


async def test_distance_is_measured_anew_with_each_answer(process):
    process.move(0.001)
    flights = fly(process)
    assert flights.round_trip == 0.001
    process.move(0.003)
    flights.send(batch())
    flights.answered(answer(0))

    assert flights.round_trip == 0.003


async def test_batches_elsewhere_are_taken_back_when_they_arrive(process):
    process.move(0.001)
    flights = fly(process)
    sent = [batch() for _ in range(3)]
    for each in sent:
        flights.send(each)
    assert (flights.take_back(), flights.take_back(), process.recalled) == ([], [], [3])
    flights.answered(answer(0))
    assert not flights.foreseen

    assert flights.recalled(Recalled(2, 3)) == [sent[2]]
    flights.answered(answer(1))
    assert flights.foreseen


async def test_batches_that_cannot_be_recalled_stay(process, monkeypatch):
    flights = fly(process)
    for _ in range(2):
        flights.send(batch())
    monkeypatch.setattr(process, "recall", Mock(side_effect=OSError))

    assert flights.take_back() == []
    assert len(flights.in_flight) == 2


async def test_process_is_notified_of_rows_that_nobody_waits_for(process):
    flights = fly(process)
    both = Request("id", [Row("id", 1)] * 3, [b"x"] * 3, 0.0)
    other = Request("id", [Row("id", 1)], [b"x"], 0.0)
    flights.send(Batch([Parcel(other, 0, 1), Parcel(both, 0, 1)], 2, "size"))
    flights.send(Batch([Parcel(both, 1, 2)], 2, "size"))
    flights.cancel(both)
    flights.cancel(Request("id", [], [], 0.0))
    flights.ended()
    flights.cancel(both)

    cancelled = [message for message, _ in process.received if isinstance(message, Cancelled)]
    assert cancelled == [Cancelled(0, [1]), Cancelled(1, [0, 1])]
