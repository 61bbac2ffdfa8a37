import logging
import re
import sys
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from tests.models.conftest import version_builder, write_model

from modelserver.engine.demand import Demand
from modelserver.engine.telemetry.gpus import gpus
from modelserver.errors import BadRequest, InternalError, InvalidModel
from modelserver.ext.cluster.launcher import Cluster
from modelserver.ext.packages.extension import environments_of
from modelserver.models.builder import Steps
from modelserver.models.environments.shared_cache import SharedCache
from modelserver.models.options.resolve import Registration
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import Settings


@pytest.fixture
def store(tmp_path):
    made = tmp_path / "store"
    made.mkdir()
    write(made / "m")
    return made


def write(folder, config="", **model):
    write_model(folder.parent, folder.name, folder.name, config=config, **model)


@pytest.fixture
async def prepare(store, tmp_path, shared_helpers):
    """Composes a model version of the store under the given settings and parameters."""

    builders = []

    async def compose(url="m", *, gpus=0, parameters=None, cluster=None, installs=True, **settings):
        builder = version_builder(tmp_path / "work", gpus, model_store=store, **settings)
        builders.append(builder)
        builder.cluster = cluster
        builder.install = environments_of(Settings(), tmp_path / "work").provide if installs else None
        archive = await builder.open(Registration(url=url))
        return await builder.build(
            url, Registration(url=url, **(parameters or {})), archive, at_startup=False
        )

    yield compose
    for each in builders:
        each.close()


async def test_worker_starts_with_its_options(prepare, store):
    model = await prepare(
        parameters={"batch_size": 4, "initial_workers": 2},
        decode_input_request=False,
        limit_max_image_pixels=False,
        max_response_size=1000,
        isolate_failures=False,
        service_envelope="json",
        blacklist_env_vars=re.compile("X.*"),
    )
    spec = model.pool.crew.spec

    assert (spec.load.model_name, spec.load.model_version, spec.load.handler) == ("m", "1.0", "own.py")
    assert Path(spec.load.model_dir).joinpath("own.py").is_file()
    assert (spec.load.batch_size, spec.load.envelope) == (4, "json")
    assert (spec.load.decode_input_request, spec.load.limit_max_image_pixels) == (False, False)
    assert (spec.load.max_response_size, spec.load.isolate) == (1000, False)
    assert spec.frame_limit > 4 * 1000
    assert spec.hidden_variables is not None
    assert spec.python == sys.executable
    assert spec.threads >= 1

    model = await prepare(parameters={"handler": "other:run"})

    assert model.pool.crew.spec.load.handler == "other:run"


async def test_archive_without_handler_is_refused(prepare, store):
    """Without a handler anywhere a registration is refused; the operator's ``default_service_handler`` is
    one, and may be any file, which what a client names may not.
    """
    write(store / "bare", handler=None)
    (store / "empty").mkdir()
    with pytest.raises(InvalidModel, match=r"names no handler.*registration\.$"):
        await prepare("bare")
    with pytest.raises(InvalidModel, match=r"MANIFEST\.json is missing; a script is named by its own path"):
        await prepare("empty", parameters={"model_name": "m"})

    assert (await prepare("bare", default_service_handler="d.py:f")).pool.crew.spec.load.handler == "d.py:f"

    path = "/opt/sagemaker/handler_service.py:handle"

    assert (await prepare("bare", default_service_handler=path)).pool.crew.spec.load.handler == path
    with pytest.raises(InvalidModel, match="only names relative to the archive"):
        await prepare("bare", default_service_handler=path, parameters={"handler": path})


@pytest.mark.parametrize("handler", ["os:system", "../own.py:handle"])
async def test_dangerous_handler_is_refused(prepare, handler):
    """A handler never names a path outside its archive, nor a module of Python itself (F59)."""
    with pytest.raises(BadRequest):
        await prepare(parameters={"handler": handler})


@pytest.mark.parametrize("where", ["manifest", "registration"])
async def test_cpp_runtime_is_refused(prepare, store, where):
    """TorchServe's C++ runtime is refused (reference 21)."""
    write(store / "cpp", runtime="LSP")
    with pytest.raises(InvalidModel, match="LSP"):
        await (prepare("cpp") if where == "manifest" else prepare(parameters={"runtime": "LSP"}))


@pytest.mark.parametrize(
    ("parameters", "models", "expected"),
    [
        ({}, {}, "python"),
        ({}, {"m": {"1.0": ModelDefaults(runtime_type="python3")}}, "python3"),
        ({"runtime": "python"}, {"m": {"1.0": ModelDefaults(runtime_type="python3")}}, "python"),
        ({}, {"m": {"2.0": ModelDefaults(runtime_type="LSP")}}, "python"),
        ({}, {"m": {"1.0": ModelDefaults(batch_size=3)}}, "python"),
    ],
)
async def test_runtime_is_chosen_by_rank(prepare, parameters, models, expected):
    """The registration, ``models=``, the manifest (reference 3.4)."""
    assert (await prepare("m", parameters=parameters, models=models)).runtime == expected


async def test_model_config_and_settings_limit_the_pool(prepare, store, caplog):
    write(store / "tuned", "batchSize: 7\nresponseTimeout: 9\nminWorkers: two\n")
    with caplog.at_level(logging.WARNING):
        model = await prepare("tuned")

    assert (model.options.batch_size, model.pool.limits.batch_size) == (7, 7)
    assert model.pool.crew.times.response == 9
    assert "minWorkers" in caplog.text

    model = await prepare(
        parameters={"batch_size": 2, "max_batch_delay": 250}, job_queue_size=5, job_queue_bytes=99
    )
    limits = model.pool.limits

    assert (limits.policy, limits.max_delay, limits.max_requests, limits.max_bytes) == ("window", 0.25, 5, 99)


async def test_workers_get_the_devices_of_their_model(prepare, store):
    """A model takes its turn among all GPUs, those it names, or none (reference 18.3)."""
    write(store / "named", "deviceIds: [1, 0]\n")
    write(store / "cpu", "deviceType: cpu\n")

    shared = (await prepare("m", gpus=2)).pool.crew.devices
    assert [shared.assign() for _ in range(3)] == [1, 0, 1]
    named = (await prepare("named", gpus=2)).pool.crew.devices
    assert [named.assign() for _ in range(3)] == [1, 0, 1]
    assert (await prepare("cpu", gpus=2)).pool.crew.devices.assign() is None


async def test_what_cannot_be_meant_is_refused(prepare, store):
    """Such as a batch size that no frame can hold, or more GPUs than there are, in TorchServe's words."""
    write(store / "odd", "batchPolicy: fast\n")
    with pytest.raises(InvalidModel) as error:
        await prepare("odd")

    assert error.value.message == (
        "odd: model-config.yaml: batchPolicy=fast: one of adaptive, greedy, window is needed"
    )

    with pytest.raises(BadRequest, match="batch_size=99999999"):
        await prepare(parameters={"batch_size": 99999999})

    write(store / "wide", "parallelType: pp\nparallelLevel: 4\n")
    with pytest.raises(InternalError, match=r"^No enough gpu devices for model:wide parallelLevel:4$"):
        await prepare("wide", gpus=2)


@pytest.mark.parametrize("required", [False, True])
async def test_workers_learn_whether_they_need_their_gpu(prepare, required):
    assert (await prepare("m", gpus=1, require_gpu=required)).pool.crew.spec.load.gpu_required is required


async def test_gpus_that_came_after_the_start_are_used(prepare, monkeypatch):
    monkeypatch.setattr(gpus.driver, "is_broken", True)
    monkeypatch.setattr(gpus, "latest", (None, None, None))

    monkeypatch.setattr(gpus, "renew", AsyncMock(return_value=True))
    model = await prepare("m", number_of_gpu=2)

    assert model.options.device_type == "gpu"
    assert [model.pool.crew.devices.assign() for _ in range(3)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("config", "processes", "broadcast", "groups"),
    [
        ("parallelType: tp\ntorchrun: {nproc-per-node: 2}", 2, True, {0: (0, 1), 2: (2, 3)}),
        ("parallelType: pp\nparallelLevel: 2", 2, False, {0: (0, 1), 2: (2, 3)}),
        ("parallelType: custom\nparallelLevel: 3", 0, True, {0: (0, 1, 2)}),
        ("parallelType: tp\nparallelLevel: 2\ndeviceIds: [3, 1, 0]", 2, True, {3: (3, 1)}),
        ("parallelType: tp\nparallelLevel: 2\ndeviceType: cpu", 2, True, {}),
    ],
)
async def test_workers_may_span_devices(prepare, store, config, processes, broadcast, groups):
    """Each worker takes the next group of GPUs (reference 18.1, 18.3)."""
    write(store / "wide", config)
    pool = (await prepare("wide", gpus=4)).pool
    ranks = pool.crew.spec.ranks
    firsts = list(groups) or [None]

    assert (ranks.processes, ranks.broadcast, ranks.groups) == (processes, broadcast, groups)
    assert [pool.crew.devices.assign() for _ in range(3)] == [firsts[i % len(firsts)] for i in range(3)]


async def test_ranks_compute_on_the_cpu_without_gpus(prepare, store):
    """Without GPUs ranks compute on the CPU, as with TorchServe; each loads the model."""
    write(store / "wide", "parallelType: tp\ntorchrun: {nproc-per-node: 3, OMP_NUMBER_THREADS: 2}")
    usual, wide = (await prepare("m")).pool.crew.spec, (await prepare("wide")).pool.crew.spec

    assert (wide.ranks.processes, wide.ranks.groups, wide.ranks.threads) == (3, {}, 2)
    assert wide.need > 2.9 * usual.need


@pytest.mark.parametrize(
    ("config", "processes", "gpus", "placement"),
    [
        ("parallelType: tp\nparallelLevel: 4\ndeviceType: gpu", 4, 4, "pack"),
        ("parallelType: pp\ntorchrun: {nproc-per-node: 2}\nplacement: spread", 2, 0, "spread"),
        ("parallelType: custom\nparallelLevel: 2\ndeviceType: gpu", 0, 2, "spread"),
    ],
)
async def test_ranks_run_on_other_machines(prepare, store, config, processes, gpus, placement):
    """The server's own GPUs do not count; ranks stay together unless the model says otherwise."""
    write(store / "wide", config)
    cluster = Cluster(Mock(), Mock(), 1.0, 1.0)
    spec = (await prepare("wide", gpus=1, cluster=cluster, worker_launcher="agents")).pool.crew.spec
    demand = spec.launcher.demand

    assert (spec.ranks.processes if spec.ranks else 0, spec.ranks and spec.ranks.groups) == (
        processes,
        {} if processes else None,
    )
    assert (demand.num_cpus, demand.num_gpus, demand.placement) == (1, gpus, placement)


async def test_gpus_that_ranks_cannot_share(prepare, store):
    """Which Ray would refuse, is refused at once."""
    write(store / "wide", "parallelType: tp\nparallelLevel: 2\nresources: {num_gpus: 3}")
    cluster = Cluster(Mock(), Mock(), 1.0, 1.0)
    with pytest.raises(InvalidModel, match=r"^wide: resources: num_gpus=3 cannot be shared by 2 processes$"):
        await prepare("wide", cluster=cluster, worker_launcher="agents")
    shared = Demand(1, 1, 1000, {"disk": 1, "fast": 6}, {"zone": "a"}, "pack").share(3)
    assert shared == Demand(0.3333, 0.3333, 333, {"disk": 0.3333, "fast": 2}, {"zone": "a"}, "pack")


@pytest.mark.parametrize("mode", ["continuousBatching", "asyncCommunication"])
async def test_ranks_take_whole_batches(prepare, store, mode):
    """Ways of serving in which processes would part ways are refused for several."""
    write(store / "wide", f"parallelType: tp\ntorchrun: {{nproc-per-node: 2}}\n{mode}: true")
    with pytest.raises(InvalidModel, match=r"^wide: model-config.yaml: continuousBatching and async"):
        await prepare("wide")
    write(store / "one", f"parallelType: custom\nparallelLevel: 2\n{mode}: true")

    assert (await prepare("one")).options.processes == 0


async def test_requirements_are_not_installed_unasked(prepare, store, caplog):
    """One line says so; the worker is started as usual (F67)."""
    write(store / "needy", requirementsFile="requirements.txt")
    model = await prepare("needy")

    assert [record.getMessage() for record in caplog.records] == [
        "needy 1.0: the archive's requirements.txt is not installed: install_py_dep_per_model=false"
    ]
    assert model.pool.crew.spec.python == sys.executable
    assert model.pool.crew.spec.extra_environment == {}


async def test_model_gets_a_virtual_environment(prepare, store, tmp_path, monkeypatch):
    """``useVenv`` gives workers a Python of their own, also without installing; it lives with the version."""
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    write(store / "apart", "useVenv: true\n", requirementsFile="requirements.txt")
    model = await prepare("apart")
    spec = model.pool.crew.spec

    assert spec.python.startswith(str(tmp_path / "cache" / "environments" / "venv-"))
    assert spec.extra_environment == {}
    environments = SharedCache(tmp_path / "cache" / "environments")
    assert environments.prune(0) == []
    model.archive.close()
    assert [str(place) for place in environments.prune(0)] == [spec.python.removesuffix("/venv/bin/python")]
    with pytest.raises(InvalidModel, match=r"^apart: this server installs no packages$"):
        await prepare("apart", installs=False)


def test_steps_of_a_download_are_reported():
    messages = []
    steps = Steps("http://x/a/b.mar?token=secret", messages.append)
    for received in range(0, 101, 5):
        steps(received, 100)

    assert messages == [f"Downloading b.mar: {percent} %" for percent in range(10, 101, 10)]

    messages = []
    steps = Steps("http://x/b.mar", messages.append)
    for mebibytes in (1, 63, 64, 65, 130):
        steps(mebibytes << 20, None)

    assert messages == ["Downloading b.mar: 64 MiB", "Downloading b.mar: 130 MiB"]
