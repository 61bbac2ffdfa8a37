import math
from dataclasses import replace

from tests.ext.parking.conftest import MIB

from modelserver.engine.pools.gate import BASE_NEED, COPIES, StartGate
from modelserver.engine.pools.spec import Ports, Ranks
from modelserver.engine.telemetry.gpus import GpuMemory, Gpus
from modelserver.ext.parking.budgets import BASE, GPU_BASE, SHARE, Budgets
from modelserver.ext.parking.keeper import MEASURES
from modelserver.ext.parking.memory import gpus_of
from modelserver.ext.parking.needs import Need, Needs
from modelserver.ext.parking.room import MIN_RESIDENCE


def set_gpu(floor, gpu, free, **by_process):
    """A reading of the GPU: MiB that are free, and those of the processes of the worker ``pN``."""
    processes = {floor.stage.processes[int(n[1:]) - 1].pid: size * MIB for n, size in by_process.items()}
    floor.gpus[gpu] = GpuMemory(free * MIB, 0, processes)


def hold(floor):
    """Processes do not end when they should; returns what ends them."""
    ends = [process.exit for process in floor.stage.processes]
    for process in floor.stage.processes:
        process.exit = lambda _: None
    return ends


async def test_default_is_a_share_of_what_is_free(floor):
    """At the first registration of a model that may use it; without a reading there is no limit."""
    set_gpu(floor, 0, 1000)
    floor.add("cpu")
    assert floor.budgets.devices == {}
    floor.add("a", gpus=(0,))
    await floor.settle()
    set_gpu(floor, 0, 10)
    floor.add("b", gpus=(0,))
    floor.add("c", gpus=(1,))
    await floor.settle()

    limits = {gpu: each.limit for gpu, each in floor.budgets.devices.items()}
    assert limits == {0: SHARE * 1000 * MIB, 1: math.inf}
    assert floor.keeper.describe()["devices"] == [
        {"gpu": 0, "budget": 900 * MIB, "used": 0, "nextToPark": None},
        {"gpu": 1, "budget": None, "used": 0, "nextToPark": None},
    ]


async def test_machines_default_is_a_share_of_what_was_free_at_first(floor):
    """What workers that load were promised is not free; later readings do not count."""
    free = [1000 * MIB]
    resident = floor.add("a")
    gate = StartGate(available=lambda: free[0])
    resident.pool.crew.spec = replace(resident.pool.crew.spec, gate=gate)
    floor.budgets.machine.limit = 0
    async with gate.place(100 * MIB):
        floor.budgets.of(resident)
    free[0] = 10 * MIB
    floor.budgets.of(resident)

    assert floor.budgets.machine.limit == SHARE * 900 * MIB


async def test_model_that_is_larger_than_its_gpu_is_refused(floor):
    """The budget of the machine would have room; the response says which has not."""
    set_gpu(floor, 1, 500)
    floor.add("a", gpus=(1,))
    request = floor.ask("a")
    await floor.settle()

    assert request.failure().status == 507
    assert f"it needs about 548 MiB, max_device_memory={450 * MIB} of GPU 1 is less" in str(request.failure())


async def test_models_of_the_same_gpu_make_room(floor):
    """Those on another one, and on the CPU, are worth less and stay: they would free nothing."""
    for gpu in (0, 1):
        set_gpu(floor, gpu, 1500)
    places = {"cpu": (), "other": (1,), "a": (0,), "b": (0,)}
    for number, (name, gpus) in enumerate(places.items(), 1):
        floor.add(name, gpus=gpus)
        await floor.use(number, name, number + 1)
    floor.add("c", gpus=(0,))
    floor.ask("c")
    await floor.settle(MIN_RESIDENCE)
    await floor.load(5)

    assert floor.states() == {"cpu": "loaded", "other": "loaded", "a": "parked", "b": "loaded", "c": "loaded"}
    devices = floor.keeper.describe()["devices"]
    assert [each["used"] for each in devices] == [548 * MIB, 2 * 548 * MIB]
    assert [each["nextToPark"] for each in devices] == ["other 1.0", "b 1.0"]


async def test_request_that_finds_no_room_is_refused_with_the_gpu(floor):
    set_gpu(floor, 0, 1000)
    for name in ("a", "b"):
        floor.add(name, gpus=(0,), startup_timeout=20)
    floor.ask("a")
    await floor.load(1)
    request = floor.ask("b")
    await floor.settle(20)

    text = f"it needs about 548 MiB, of max_device_memory={900 * MIB} of GPU 0 548 MiB are used"
    assert text in str(request.failure())


async def test_gpu_memory_is_measured_and_learned(floor, tmp_path):
    set_gpu(floor, 0, 1000)
    resident = floor.add("a", gpus=(0,))
    floor.ask("a")
    await floor.settle()
    await floor.stage.enter(1)
    set_gpu(floor, 0, 700, p1=300)
    await floor.answer(await floor.load(1))
    assert resident.describe()["deviceMemory"] == {"0": 300 * MIB}
    set_gpu(floor, 0, 600, p1=400)
    await floor.settle(MEASURES)
    assert resident.describe()["deviceMemory"] == {"0": 400 * MIB}
    resident.park()
    await floor.settle()

    assert resident.describe()["deviceMemory"] is None
    later = Needs(tmp_path)
    later.load()
    need = later.get(f"a/1.0/{36 * MIB}")
    assert (need.memory, need.device) == (100 * MIB, 400 * MIB)


async def test_child_processes_count_on_their_worker(floor):
    """An engine of its own process has the weights there, and memory of the machine."""
    set_gpu(floor, 0, 1000)
    resident = floor.add("a", gpus=(0,))
    floor.ask("a")
    await floor.settle()
    process, engine = await floor.stage.enter(1), 2**22 + 1
    floor.children[process.pid] = [engine]
    floor.sizes[engine] = 200 * MIB
    floor.gpus[0] = GpuMemory(300 * MIB, 0, {engine: 600 * MIB})
    await floor.answer(await floor.load(1))
    resident.park()
    await floor.settle()

    assert floor.keeper.need_of(resident) == Need(300 * MIB, 0.0, 600 * MIB)


async def test_need_is_that_of_one_worker(floor):
    """Two of them share the GPU."""
    set_gpu(floor, 0, 2000)
    resident = floor.add("a", gpus=(0,), workers=(0, 2))
    await floor.use(1, "a")
    floor.pools["a"].crew.resize(2)
    await floor.load(2)
    set_gpu(floor, 0, 800, p1=600, p2=600)
    await floor.settle(MEASURES)

    assert resident.memory == 200 * MIB
    assert floor.keeper.need_of(resident) == Need(100 * MIB, 0.0, 600 * MIB)


async def test_what_ends_has_what_all_its_workers_had(floor):
    """Nothing is loaded in its place before: their processes may take seconds to end."""
    floor.keeper.budgets.machine.limit = 400 * MIB
    floor.add("a", workers=(0, 3))
    await floor.use(1, "a")
    floor.pools["a"].crew.resize(3)
    for number in (2, 3):
        await floor.load(number)
    await floor.settle(MIN_RESIDENCE + MEASURES)
    ends = hold(floor)
    floor.add("b", mib=300)
    floor.ask("b")
    await floor.settle()
    assert floor.states() == {"a": "parked", "b": "waiting"}
    for end in ends:
        end("exited with status 0")
    await floor.load(4, 300)

    assert floor.states() == {"a": "parked", "b": "loaded"}


async def test_all_workers_that_a_load_starts_count_on_their_gpus(floor):
    for gpu in (0, 1):
        set_gpu(floor, gpu, 1000)
    one, two = (floor.add(name, gpus=gpus, workers=(2, 2)) for name, gpus in (("one", (0,)), ("two", (0, 1))))
    needs = [[floor.budgets.need(each, budget) for budget in floor.budgets.of(each)] for each in (one, two)]
    for number in (1, 2, 3, 4):
        await floor.load(number)
    set_gpu(floor, 0, 100, p1=300, p2=300, p3=300)
    set_gpu(floor, 1, 700, p4=300)
    await floor.settle(MEASURES)
    for each in (one, two):
        each.park()
    await floor.settle()
    learned = [[floor.budgets.need(each, budget) for budget in floor.budgets.of(each)] for each in (one, two)]

    files = GPU_BASE + 36 * MIB
    assert needs == [[2 * files, 200 * MIB], [files, files, 200 * MIB]]
    assert learned == [[600 * MIB, 200 * MIB], [300 * MIB, 300 * MIB, 200 * MIB]]


async def test_worker_that_ends_has_no_share_of_what_is_learned(floor):
    set_gpu(floor, 0, 2000)
    resident = floor.add("a", gpus=(0,))
    await floor.use(1, "a")
    hold(floor)
    resident.park()
    floor.ask("a")
    await floor.settle()
    await floor.stage.enter(2)
    set_gpu(floor, 0, 400, p1=300, p2=300)
    await floor.answer(await floor.load(2))

    assert floor.keeper.need_of(resident).device == 300 * MIB


async def test_model_with_other_files_has_other_needs(floor):
    """A smaller one of the same name and version is loaded where the one before would not fit any more."""
    resident = floor.add("a", mib=100)
    await floor.use(1, "a", mib=900)
    resident.park()
    await floor.pools["a"].close(0.0)
    await floor.settle()
    floor.keeper.change(500 * MIB, None)
    resident = floor.add("a", mib=90)
    request = floor.ask("a")
    assert floor.keeper.need_of(resident).memory == 90 * MIB
    await floor.answer(await floor.load(2))

    assert request.failure() is None


async def test_driver_that_does_not_tell_processes_apart_leaves_the_estimate(floor):
    set_gpu(floor, 0, 1000)
    resident = floor.add("a", gpus=(0,))
    await floor.use(1, "a")

    assert floor.keeper.need_of(resident).device == GPU_BASE + 36 * MIB
    assert floor.keeper.describe()["devices"][0]["used"] == GPU_BASE + 36 * MIB


async def test_handler_that_uses_the_cpu_needs_nothing_of_its_gpu(floor):
    set_gpu(floor, 0, 1000)
    resident = floor.add("a", gpus=(0,))
    floor.ask("a")
    await floor.settle()
    process = await floor.stage.enter(1)
    floor.sizes[process.pid] = 100 * MIB
    process.load(device="cpu")
    await floor.answer(process)
    resident.park()
    await floor.settle()

    assert gpus_of(resident.pool) == (0,)
    assert floor.keeper.need_of(resident) == Need(100 * MIB, resident.load_seconds, 0)


async def test_model_without_a_gpu_says_nothing_of_one(floor, resident):
    """Also to a later server, which may have GPUs."""
    await floor.use(1, "a")

    assert floor.keeper.need_of(resident).device is None
    assert resident.describe()["deviceNeed"] is None


async def test_files_are_counted_once_for_all_processes(floor):
    """Of a worker of four processes, which has two GPUs, all read the same files."""
    resident = floor.add("a", gpus=(0,))
    ranks = Ranks(processes=4, broadcast=True, groups={0: (0, 1)}, threads=0, ports=Ports(0))
    crew = floor.pools["a"].crew
    crew.spec = replace(crew.spec, ranks=ranks, need=4 * (BASE_NEED + COPIES * 100 * MIB))

    assert gpus_of(resident.pool) == (0, 1)
    assert floor.keeper.need_of(resident) == Need(4 * BASE + 100 * MIB, 0.0, GPU_BASE + 50 * MIB)


async def test_models_on_other_machines_count_nowhere(floor):
    """Their memory is not this machine's: the cluster finds a place for them."""
    floor.budgets.machine.limit = MIB
    resident = floor.add("a")
    crew = floor.pools["a"].crew
    assert floor.budgets.of(resident) == [floor.budgets.machine]

    async def launch(*_):
        raise OSError("no machine")

    crew.spec = replace(crew.spec, launcher=launch)
    assert floor.budgets.of(resident) == []
    floor.ask("a")
    floor.keeper.place()
    assert floor.states() == {"a": "loading"}


async def test_limit_that_is_set_is_never_read(tmp_path, floor):
    budgets = Budgets(7.9, 8.9, Needs(tmp_path), Gpus())
    budgets.of(floor.add("a", gpus=(3,)))

    assert [str(each) for each in budgets.all()] == ["max_models_memory=7", "max_device_memory=8 of GPU 3"]
