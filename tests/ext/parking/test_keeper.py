import asyncio
import errno
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.engine.pools import pools
from tests.engine.pools.pools import LIMITS, contents
from tests.waiting import until

from modelserver.engine.batching.request import Request, SequencedRequest, SequenceMark
from modelserver.engine.pools.gate import MAX_LOADING, StartGate
from modelserver.engine.wire.messages import Answer, Parts, Row, SequenceHeaders
from modelserver.errors import Conflict, ServiceUnavailable
from modelserver.ext.parking import keeper as module
from modelserver.ext.parking import stored
from modelserver.ext.parking.keeper import LOOKS, MEASURES, PATIENCE
from modelserver.ext.parking.needs import Needs
from modelserver.ext.parking.resident import Resident
from modelserver.ext.parking.room import MIN_RESIDENCE
from modelserver.ext.sequences.affinity import SequenceAffinity
from modelserver.ext.sequences.queue import SequenceLimits, SequenceQueue

MIB = 1 << 20


def affinity():
    names = SequenceHeaders()
    limits = SequenceLimits(60.0, max_sequences=9)
    return SequenceAffinity(SequenceQueue(LIMITS, limits, names), names)


@pytest.mark.parametrize(
    ("options", "workers", "state"),
    [
        ({}, (0, 1), "parked"),
        ({"idle_timeout": 0}, (0, 1), "loaded"),
        ({"pin": True}, (0, 1), "loaded"),
        ({}, (1, 1), "loaded"),
    ],
)
async def test_idle_model_is_parked(floor, options, workers, state):
    """After its timeout, unless it has none, is pinned, or is to have workers."""
    floor.add("a", workers=workers, **options)
    if not workers[0]:
        floor.ask("a")
    process = await floor.load(1)
    await floor.settle(299)
    if process.batches:
        await floor.answer(process)
    await floor.settle(299)
    assert floor.states() == {"a": "loaded"}
    await floor.settle(2)

    assert floor.states() == {"a": state}


async def test_least_valuable_model_makes_room(floor):
    """The one whose requests are fewest; those that are young, or have requests, stay."""
    floor.keeper.budgets.machine.limit = 300 * MIB
    for number, (name, requests) in enumerate({"a": 3, "b": 1, "c": 2}.items(), 1):
        await floor.use(number, name, requests)
        floor.ask(name)
    floor.ask("d")
    await floor.settle(MIN_RESIDENCE - 1)
    assert floor.states()["d"] == "waiting"  # all have a request
    for process in floor.stage.processes[1:3]:
        await floor.answer(process)
    assert floor.states()["d"] == "waiting"  # all are young
    await floor.settle(2)
    await floor.load(4)

    assert floor.states() == {"a": "loaded", "b": "parked", "c": "loaded", "d": "loaded"}


async def test_model_larger_than_the_budget_is_refused(floor):
    floor.keeper.budgets.machine.limit = 99 * MIB
    request = floor.ask("a")
    await floor.settle()

    assert request.failure().status == 507
    assert "it needs about 100 MiB, max_models_memory=103809024 is less" in str(request.failure())
    assert floor.states() == {"a": "failed"}


async def test_smaller_budget_parks_models_and_a_larger_one_loads_them(floor):
    """At once those that nobody uses, the others after their requests."""
    await floor.use(1, "idle")
    floor.ask("busy")
    process = await floor.load(2)
    await floor.settle(MIN_RESIDENCE + 1)
    floor.keeper.change(99 * MIB, None)
    await floor.settle()
    assert floor.states() == {"busy": "loaded", "idle": "parked"}
    await floor.answer(process)
    await floor.settle()
    assert floor.states() == {"busy": "parked", "idle": "parked"}
    refused = floor.ask("idle")
    await floor.settle()
    assert refused.failure().status == 507
    floor.keeper.change(100 * MIB, None)
    floor.ask("idle")
    await floor.load(3)

    assert floor.states() == {"busy": "parked", "idle": "loaded"}


async def test_request_that_waits_for_memory_is_placed_in_a_larger_budget(floor):
    floor.keeper.budgets.machine.limit = 150 * MIB
    for name in "ab":
        floor.ask(name)
        await floor.settle()
    assert floor.states() == {"a": "loading", "b": "waiting"}
    floor.keeper.change(200 * MIB, None)
    await floor.settle()

    assert floor.states() == {"a": "loading", "b": "loading"}


def lacks_memory(failure):
    """Whether it says when to try again, and which budget is too small."""
    text = "of max_models_memory=157286400 100 MiB are used, and no other model could be parked in time"
    assert isinstance(failure, ServiceUnavailable)
    return failure.headers == ((b"retry-after", b"1"),) and text in str(failure)


@pytest.mark.parametrize("has_sequences", [False, True])
async def test_request_that_finds_no_room_is_refused_with_the_budget(floor, has_sequences):
    """At its own deadline, or after ``startupTimeout``; those that came later wait on, and are answered."""
    floor.keeper.budgets.machine.limit = 150 * MIB
    floor.ask("a")
    process = await floor.load(1)
    resident = floor.add("b", startup_timeout=20, affinity=affinity() if has_sequences else None)

    async def send(name, deadline=None):
        request = Request("id", [Row("id", 1)], [b"x"], floor.now, deadline=deadline)
        if has_sequences:
            mark = SequenceMark(name, ends=True)
            request = SequencedRequest("id", request.rows, [b"x"], floor.now, deadline=deadline, mark=mark)
        floor.pools["b"].submit(request)
        load = asyncio.create_task(resident.load())
        await asyncio.sleep(0)
        return request, load

    first, first_load = await send("first")
    await floor.settle(10)
    due, later_load = await send("due", pools.now())
    later, _ = await send("later")
    with pytest.raises(ServiceUnavailable) as refused:
        await resident.load(seconds=0.0)
    await until(lambda: due.done)
    await floor.settle(9)
    assert not first.done
    await floor.settle(1)
    await asyncio.wait({first_load})
    failures = refused.value, due.failure(), first.failure(), first_load.exception()
    assert all(map(lacks_memory, failures))
    await floor.answer(process)
    await floor.settle(MIN_RESIDENCE)
    await floor.answer(await floor.load(2))
    await later_load

    assert contents(later) == [b"x"]
    assert resident.failed_loads == 0


async def test_what_was_measured_counts_instead_of_the_files(floor):
    resident = floor.add("a", 100)
    assert floor.keeper.need_of(resident).memory == 100 * MIB
    floor.ask("a")
    process = await floor.load(1, 40)
    assert floor.keeper.describe()["used"] == 40 * MIB
    await floor.answer(process)
    await floor.settle(301)

    assert floor.states() == {"a": "parked"}
    assert floor.keeper.need_of(resident).memory == 40 * MIB
    assert floor.keeper.describe()["used"] == 0


async def test_model_that_grows_makes_others_leave(floor):
    floor.keeper.budgets.machine.limit = 250 * MIB
    for number, name in enumerate(("a", "b"), 1):
        await floor.use(number, name)
    busy = floor.ask("b")
    floor.sizes[floor.stage.processes[1].pid] = 200 * MIB
    await floor.settle(MEASURES + 1)

    assert floor.states() == {"a": "parked", "b": "loaded"}
    assert not busy.done


async def test_worker_that_was_not_waited_for_makes_others_leave(floor):
    """A replacement's, that of a larger minWorkers: the budget holds again before it has loaded."""
    floor.keeper.budgets.machine.limit = 250 * MIB
    for number, name in enumerate(("a", "b"), 1):
        await floor.use(number, name)
    floor.ask("b")
    await floor.settle(MIN_RESIDENCE + 1)
    floor.add("c", workers=(1, 1))
    await floor.settle()

    assert floor.states() == {"a": "parked", "b": "loaded", "c": "loading"}
    assert floor.keeper.describe()["used"] == 200 * MIB


async def test_most_valuable_of_several_is_loaded_first(floor):
    floor.keeper.budgets.machine.limit = 100 * MIB
    for number, (name, requests) in enumerate({"a": 1, "b": 5}.items(), 1):
        await floor.use(number, name, requests)
        await floor.settle(MIN_RESIDENCE + 1)
        floor.keeper.residents[-1].park()
        await floor.settle()
    floor.ask("a")
    floor.ask("b")
    await floor.settle()

    assert floor.states() == {"a": "waiting", "b": "loading"}


async def test_most_valuable_of_several_passes_the_gate_first(floor):
    """There is memory for all of them, but one at a time may load."""
    floor.gate = StartGate(1, lambda: math.inf)
    for number, (name, requests) in enumerate({"a": 1, "b": 5, "c": 2}.items(), 1):
        await floor.use(number, name, requests)
        await floor.settle(LOOKS)
        floor.keeper.residents[-1].park()
    for name in ("first", "a", "c", "b"):
        floor.ask(name)
        await floor.settle()
    for number in range(4, 8):
        await floor.load(number)

    assert [spec.load.model_name for spec in floor.stage.specs[3:]] == ["first", "b", "c", "a"]


async def test_request_that_has_waited_for_long_comes_before_valuable_models(floor):
    floor.keeper.budgets.machine.limit = 100 * MIB
    for number, (name, requests) in enumerate({"a": 1, "b": 5}.items(), 1):
        process = await floor.use(number, name, requests)
        await floor.settle(MIN_RESIDENCE + 1 if name == "a" else 0)
    floor.ask("b")
    floor.ask("a")
    await floor.settle(PATIENCE)
    floor.ask("c")
    await floor.answer(process)
    await floor.settle(MIN_RESIDENCE)
    floor.ask("b")
    await floor.settle()

    assert floor.states() == {"a": "loading", "b": "waiting", "c": "waiting"}


async def test_large_model_gets_what_becomes_free_bit_by_bit(floor):
    """After some time small ones no longer take it, if all it needs will be free: what is pinned will not."""
    floor.keeper.budgets.machine.limit = 200 * MIB
    floor.add("pinned", pin=True)
    floor.add("a")
    for number, name in enumerate(("pinned", "a"), 1):
        await floor.use(number, name, mib=64)
    floor.add("never", mib=190)
    floor.add("large", mib=130)
    floor.add("small", mib=70)
    floor.ask("never")
    floor.ask("large")
    await floor.settle(PATIENCE)
    floor.ask("small")
    await floor.settle()
    assert [floor.states()[name] for name in ("never", "large", "small")] == ["waiting"] * 3
    await floor.settle(MIN_RESIDENCE)

    assert floor.states()["large"] == "loading"
    assert floor.states()["never"] == floor.states()["small"] == "waiting"


async def test_requests_wait_on_when_their_model_is_scaled_to_no_workers(floor):
    """They are answered after it was loaded again, and need no further request for that."""
    first = floor.ask("a")
    process = await floor.load(1)
    second = floor.ask("a")
    floor.pools["a"].scale(0, 0)
    # One is started for requests all the same.
    assert floor.pools["a"].max_workers == 1
    await floor.answer(process)
    assert (first.done, second.done) == (True, False)
    await floor.answer(await floor.load(2))

    assert second.failure() is None
    assert second.done


async def test_model_that_is_scaled_to_no_workers_while_it_loads_has_not_failed(floor, resident):
    """What waits for it waits on, and is answered by the next worker."""
    request, load = floor.ask("a"), asyncio.create_task(resident.load())
    await floor.settle()
    await floor.stage.enter(1)
    floor.pools["a"].scale(0, 0)
    await floor.settle()
    assert (request.done, load.done(), resident.failed_loads) == (False, False, 0)
    await floor.answer(await floor.load(2))
    await load

    assert request.failure() is None


async def test_load_that_nothing_waits_for_is_stopped_by_a_client(floor, resident):
    """The model is parked, and the next request loads it at once."""
    floor.pools["a"].cancel(floor.ask("a"))
    await floor.settle()
    await floor.stage.enter(1)
    resident.park()
    await floor.settle()
    assert floor.states() == {"a": "parked"}
    request = floor.ask("a")
    await floor.answer(await floor.load(2))

    assert request.failure() is None


async def test_unregistered_model_is_forgotten(floor):
    floor.ask("a")
    await floor.load(1)
    await floor.pools["a"].close(0.0)
    await floor.settle()

    assert floor.keeper.residents == []
    assert floor.keeper.describe() == {
        "budget": 1000 * MIB,
        "used": 0,
        "models": {},
        "nextToPark": None,
        "devices": None,
        "prewarms": {"hit": 0, "miss": 0},
    }


async def test_unregistered_model_answers_what_waits_for_memory(floor):
    """It is loaded for that, and forgotten when it has no process any more."""
    floor.keeper.budgets.machine.limit = 100 * MIB
    for name in ("a", "b"):
        floor.add(name)
    await floor.use(1, "a")
    request = floor.ask("b")
    drained = asyncio.create_task(floor.pools["b"].drain(60.0))
    await floor.settle()
    assert floor.states() == {"a": "loaded", "b": "waiting"}
    await floor.settle(MIN_RESIDENCE + 1)
    assert floor.states() == {"a": "parked", "b": "loading"}
    await floor.answer(await floor.load(2))

    assert await drained
    assert request.failure() is None
    assert floor.states() == {"a": "parked", "b": "loaded"}
    await floor.pools["b"].close(0.0)
    await floor.settle()
    assert floor.states() == {"a": "parked"}


async def test_metrics_are_of_models_that_were_used(floor, monkeypatch):
    """The least recently used of the parked ones leave; what they counted comes back with them."""
    monkeypatch.setattr(module, "MOST_VISIBLE", 2)
    for number, name in enumerate(("a", "b", "c", "d"), 1):
        await floor.use(number, name)
        await floor.settle(1)

    def names():
        text = b"".join(floor.metrics.pieces()).decode()
        return [name for name in "abcde" if f'modelserver_split_requests_total{{model_name="{name}"' in text]

    floor.add("e")
    assert names() == ["a", "b", "c", "d"]  # they are loaded
    for each in floor.keeper.residents[:4]:
        each.park()
    floor.keeper.look()
    assert names() == ["c", "d"]
    floor.ask("a")
    await floor.load(5)
    assert names() == ["a", "d"]


async def test_replacement_that_fails_leaves_the_version_as_it_was(floor):
    """Its metrics are shown all the time, and it is worth as much."""

    def shows_metrics():
        return 'modelserver_split_requests_total{model_name="a"' in b"".join(floor.metrics.pieces()).decode()

    resident = floor.add("a")
    assert not shows_metrics()
    await floor.use(1, "a")
    await floor.settle(LOOKS)
    value = floor.keeper.value_of(resident)
    floor.add("a")
    assert shows_metrics()
    await floor.pools["a"].close(0.0)
    await floor.settle()

    assert floor.keeper.residents == [resident]
    assert shows_metrics()
    assert floor.keeper.value_of(resident) == value > 0


async def test_500_cold_models_at_once_take_turns(floor):
    """Each gets one answer. No more load at once than the gate lets, and never more are loaded, or ending,
    than there is memory for; each is loaded once.
    """
    floor.keeper.budgets.machine.limit = 5000 * MIB
    names = [f"m{number}" for number in range(500)]
    for name in names:
        floor.add(name, startup_timeout=3600)
    requests = {name: floor.ask(name, name.encode()) for name in names}
    processes, most_used, most_loading, done = floor.stage.processes, 0, 0, 0
    while not all(request.done for request in requests.values()):
        await floor.settle(0.0 if done < len(processes) else MIN_RESIDENCE)
        fresh, done = processes[done:], len(processes)
        most_loading = max(most_loading, len(fresh))
        for process in fresh:
            floor.sizes[process.pid] = 100 * MIB
            process.load()
        await floor.stage.settle()
        most_used = max(most_used, floor.keeper.describe()["used"])
        for process in fresh:
            process.answer()

    assert [contents(requests[name]) for name in names] == [[name.encode()] for name in names]
    assert most_used == 5000 * MIB
    assert most_loading == MAX_LOADING
    assert len(processes) == 500


async def test_model_that_streams_is_not_parked(floor):
    """Neither for being idle, nor for another's request or by a client's: only when the last part is sent."""
    floor.keeper.budgets.machine.limit = 100 * MIB
    resident = floor.add("a")
    stream, parts = floor.ask("a"), list[bytes]()
    stream.on_part = lambda _request, _answer, part: parts.append(bytes(part))
    process = await floor.load(1)
    (batch,) = process.batches
    floor.add("b", startup_timeout=3600)
    other = floor.ask("b")
    for number in range(5):
        process.say(Parts([batch.sequence], [0], [Answer(1)]), [b"%d" % number])
        await floor.settle(301)
        with pytest.raises(Conflict):
            resident.park()
    assert floor.states() == {"a": "loaded", "b": "waiting"}
    await floor.answer(process)
    await floor.settle(LOOKS)
    await floor.answer(await floor.load(2))

    assert stream.failure() is None
    assert parts[:5] == [b"0", b"1", b"2", b"3", b"4"]
    assert contents(other) == [b"x"]
    assert floor.states() == {"a": "parked", "b": "loaded"}


async def test_model_that_never_stops_loading_holds_up_no_other(floor):
    floor.keeper.budgets.machine.limit = 200 * MIB
    floor.ask("endless")
    await floor.settle()
    request = floor.ask("b")
    await floor.answer(await floor.load(2))
    await floor.settle(3000)

    assert contents(request) == [b"x"]
    assert floor.states() == {"endless": "loading", "b": "parked"}


async def test_model_that_never_stops_loading_is_ended(floor):
    """At ``startupTimeout``; what waits for it learns the reason, as do requests until the next attempt."""
    floor.times = replace(floor.times, startup=0.01)
    request = floor.ask("endless")
    load = asyncio.create_task(floor.keeper.residents[0].load())
    await floor.settle()
    await asyncio.wait({load})
    failures = request.failure(), load.exception(), floor.keeper.residents[0].refusal

    assert all("not loaded within startup_timeout=0.01 s" in str(failure) for failure in failures)
    assert {type(failure) for failure in failures} == {ServiceUnavailable}
    assert floor.stage.processes[0].killed
    assert floor.states() == {"endless": "failed"}


async def test_model_that_outgrows_the_budget_is_refused_after_it_was_parked(floor):
    """It answers what it has; then there is no room for it any more."""
    floor.keeper.budgets.machine.limit = 150 * MIB
    floor.ask("a")
    process = await floor.load(1)
    floor.sizes[process.pid] = 200 * MIB
    await floor.settle(MEASURES + MIN_RESIDENCE)
    assert floor.states() == {"a": "loaded"}
    await floor.answer(process)
    await floor.settle(MEASURES)
    assert floor.states() == {"a": "parked"}
    request = floor.ask("a")
    await floor.settle()

    assert request.failure().status == 507


async def test_workers_that_were_added_do_not_count_for_the_next_load(floor):
    """That starts one: a model of which several do not fit, as after autoscaling, is loaded again."""
    floor.keeper.budgets.machine.limit = 250 * MIB
    resident = floor.add("a", workers=(0, 3))
    await floor.use(1, "a")
    floor.pools["a"].crew.resize(3)
    for number in (2, 3):
        await floor.load(number)
    await floor.settle(MIN_RESIDENCE + MEASURES)
    assert dict(resident.parks) == {"memory": 1}
    await floor.use(4, "a")

    assert floor.states() == {"a": "loaded"}


async def test_further_workers_fit_into_the_budget(floor):
    """By the memory that no model waits for; also those count that have not been measured yet."""
    floor.keeper.budgets.machine.limit = 250 * MIB
    resident = floor.add("a", workers=(0, 3))
    await floor.use(1, "a")
    room = resident.pool.crew.spec.room
    rooms = [room()]
    for count in (2, 3, 2):
        floor.pools["a"].crew.resize(count)
        rooms.append(room())
    floor.ask("b")
    rooms.append(room())

    assert rooms == [1.5, 0.5, -0.5, 0.5, 0.0]


async def test_further_workers_fit_into_gpus(floor):
    """Each gets the next one, where other models may have memory."""
    floor.budgets.change(device=1024 * MIB)
    other = floor.add("other", gpus=(1,), workers=(2, 2))
    resident = floor.add("a", gpus=(0, 1), workers=(1, 2))
    need = floor.keeper.need_of(other).device
    await floor.settle()

    assert resident.pool.crew.spec.room() == pytest.approx(1024 * MIB / need - 2)


async def test_measuring_that_fails_is_logged(floor, caplog, resident):
    """Requests are served all the same, and what was not measured is measured later."""
    floor.ask("a")
    floor.sizes = None
    await floor.settle()
    (await floor.stage.enter(1)).load()
    await floor.settle()
    assert "The memory of models could not be measured" in caplog.text
    floor.sizes = {floor.stage.processes[0].pid: 70 * MIB}
    await floor.settle(MEASURES)

    assert resident.memory == 70 * MIB


async def test_full_disk_stops_nothing(floor, tmp_path, monkeypatch, caplog):
    """Models are loaded and parked by what they were measured to need, which is written later."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stored, "replace_file", fail)
        for number in (1, 2):
            await floor.use(number, "a", mib=39 + number)
            floor.keeper.residents[0].park()
    assert caplog.text.count("What models need cannot be kept") == 1
    needs = floor.budgets.needs
    assert not list(tmp_path.iterdir())
    needs.save()
    floor.budgets.needs = Needs(tmp_path)
    floor.budgets.needs.load()

    assert floor.keeper.need_of(floor.keeper.residents[0]).memory == 41 * MIB


async def test_sequence_keeps_its_worker(floor, resident):
    await floor.use(1, "a")
    alive = SimpleNamespace(statistics={"living": 1})
    floor.pools["a"].affinity = alive
    await floor.settle(3000)
    assert floor.states() == {"a": "loaded"}
    with pytest.raises(Conflict):
        resident.park()
    floor.pools["a"].affinity = None
    await floor.settle(301)

    assert floor.states() == {"a": "parked"}


async def test_worker_to_come_is_a_ticket(floor):
    """With ``useJobTicket``, a parked model has a free worker: the one that its next request starts."""
    floor.add("plain", tickets=True)
    floor.add("stateful", tickets=True, affinity=affinity())
    ends = SequenceMark("s", ends=True)
    requests = {
        "plain": pools.request(b"x"),
        "stateful": SequencedRequest("id", [Row("id", 1)], [b"x"], pools.now(), mark=ends),
    }
    for number, (name, request) in enumerate(requests.items(), 1):
        floor.pools[name].submit(request)
        await floor.answer(await floor.load(number))
        assert contents(request) == [b"x"]


async def test_event_looks_at_what_has_changed(floor, monkeypatch):
    """Of a thousand models at one; what is to be parked is chosen of those that are loaded."""
    floor.keeper.budgets.machine.limit = 1000 * MIB
    for number in range(1000):
        floor.add(f"m{number}", startup_timeout=3600)
    for number in range(9):
        await floor.use(number + 1, f"m{number}")
    await floor.settle(MIN_RESIDENCE)
    looked = set()
    for name in ("state", "_is_busy"):
        read = getattr(Resident, name).fget

        def watched(resident, read=read):
            looked.add(resident.model.name)
            return read(resident)

        monkeypatch.setattr(Resident, name, property(watched))

    async def names(event):
        """Those that are looked at because of an event."""
        looked.clear()
        await event
        await floor.settle()
        return set(looked)

    async def ask(name):
        floor.ask(name)

    assert await names(ask("m500")) == {"m500"}  # there is memory
    process = floor.stage.processes[-1]
    assert await names(floor.load(10)) == {"m500"}
    assert await names(floor.answer(process)) == set()
    loaded = {f"m{number}" for number in (*range(9), 500)}
    assert await names(ask("m600")) == loaded | {"m600"}  # one makes room
    assert await names(floor.load(11)) == {"m600"}
    assert floor.states()["m0"] == "parked"
    for number in range(1, 9):
        floor.ask(f"m{number}")
    floor.ask("m500")
    for number in range(700, 800):
        floor.ask(f"m{number}")
    await floor.settle()
    busy = loaded - {"m0"} | {"m600"}
    assert await names(ask("m900")) == busy | {"m900"}  # the others wait on
    assert await names(floor.pools["m950"].close(0.0)) <= {"m950"}
    assert len(floor.keeper.residents) == 999


@pytest.mark.parametrize("jump", [-500.0, 100_000.0])
async def test_clock_that_jumps_stops_nothing(floor, jump):
    """Models are loaded, measured and parked as before."""
    await floor.use(1, "a")
    floor.now += jump
    request = floor.ask("b")
    await floor.answer(await floor.load(2, 70))
    assert contents(request) == [b"x"]
    assert floor.keeper.residents[1].memory == 70 * MIB
    await floor.settle(1000)

    assert floor.states() == {"a": "parked", "b": "parked"}
