"""How the options of a model version are found."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver.engine.demand import Demand
from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.errors import BadRequest
from modelserver.models.options.resolve import (
    BATCHER_DEFAULT,
    COMMAND_LINE,
    CONFIG_FILE,
    DEFAULT,
    ENVIRONMENT,
    MODELS_KEY,
    REGISTER,
    YAML,
    BatchPolicy,
    ModelOptions,
    Registration,
    resolve_options,
)
from modelserver.models.options.signature import Signature
from modelserver.models.options.table import CONFIG_KEYS, ModelConfig
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.keys import KEYS
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import Settings


def _resolve(
    registration: Registration | None = None,
    yaml: str = "",
    fallback: ModelDefaults | None = None,
    *,
    at_startup: bool = False,
    devices: int = 0,
    cpus: int = 4,
    sources: dict[str, str] | None = None,
    **settings: Any,
) -> ModelOptions:
    config, _ = parse_model_config(yaml)
    models = {"noop": {"1.0": fallback}} if fallback else {}
    return resolve_options(
        "noop",
        "1.0",
        registration or Registration(),
        config if yaml else None,
        Settings(models=models, **settings),
        at_startup=at_startup,
        device_count=devices,
        cpu_count=cpus,
        setting_sources=sources,
    )


def _found(options: ModelOptions, name: str) -> tuple[object, str]:
    return getattr(options, name), options.sources[name]


def test_nothing_given_is_the_defaults() -> None:
    """One instance per batch, adaptive, no workers, and every source is the default."""
    options = _resolve()
    assert options == ModelOptions(sources=dict.fromkeys(options.sources, DEFAULT))
    assert set(options.sources) == set(ModelOptions.__slots__) - {"sources", "warnings"}


@pytest.mark.parametrize(
    ("registration", "yaml", "fallback", "size", "delay"),
    [
        (
            Registration(batch_size=8, max_batch_delay=5),
            "batchSize: 4\nmaxBatchDelay: 7",
            2,
            (8, REGISTER),
            (5, REGISTER),
        ),
        (Registration(max_batch_size=8, max_latency=5), "batcher: {}", 2, (8, REGISTER), (5, REGISTER)),
        (Registration(), "batchSize: 4\nmaxBatchDelay: 7", 2, (4, YAML), (7, YAML)),
        (Registration(), "batcher: {maxBatchSize: 3, maxLatency: 9}\nbatchSize: 4", 2, (3, YAML), (9, YAML)),
        (Registration(), "batcher: {maxLatency: 9}\nbatchSize: 4", 2, (4, YAML), (9, YAML)),
        (Registration(), "maxBatchDelay: 0", 2, (2, MODELS_KEY), (2, MODELS_KEY)),
        (Registration(), "batcher: {}", 2, (2, MODELS_KEY), (2, MODELS_KEY)),
        (Registration(), "batcher: {}", 0, (32, BATCHER_DEFAULT), (500, BATCHER_DEFAULT)),
        (Registration(timeout=5), "", 0, (32, BATCHER_DEFAULT), (500, BATCHER_DEFAULT)),
        (Registration(batch_size=-1, max_batch_delay=-100), "", 2, (2, MODELS_KEY), (2, MODELS_KEY)),
        (Registration(batch_size=0, max_batch_delay=0), "", 0, (1, DEFAULT), (0, REGISTER)),
        (Registration(), "", 0, (1, DEFAULT), (100, DEFAULT)),
    ],
)
def test_batch_size_and_delay(
    registration: Registration, yaml: str, fallback: int, size: tuple[int, str], delay: tuple[int, str]
) -> None:
    """Register parameter, yaml, models=, default; a batcher block brings 32 and 500 ms (reference 8.6)."""
    given = ModelDefaults(batch_size=fallback, max_batch_delay=fallback) if fallback else None
    options = _resolve(registration, yaml, given)
    assert _found(options, "batch_size") == size
    assert _found(options, "max_batch_delay") == delay


@pytest.mark.parametrize(
    ("registration", "yaml", "fallback", "setting", "expected"),
    [
        (Registration(batch_policy="GREEDY"), "batchPolicy: window", None, "adaptive", ("greedy", REGISTER)),
        (Registration(max_batch_delay=5), "batchPolicy: adaptive", None, "greedy", ("adaptive", YAML)),
        (Registration(max_batch_delay=5), "", None, "greedy", ("greedy", CONFIG_FILE)),
        (Registration(max_batch_delay=5), "", None, None, ("window", REGISTER)),
        (Registration(max_batch_delay=0), "", None, None, ("window", REGISTER)),
        (Registration(max_latency=5), "", None, None, ("window", REGISTER)),
        (Registration(), "maxBatchDelay: 5", None, None, ("window", YAML)),
        (Registration(), "batcher: {}", None, None, ("window", YAML)),
        (Registration(), "", ModelDefaults(max_batch_delay=5), None, ("window", MODELS_KEY)),
        (
            Registration(batch_size=8),
            "batchSize: 4",
            ModelDefaults(batch_size=2),
            None,
            ("adaptive", DEFAULT),
        ),
        (Registration(max_batch_delay=-1), "maxBatchDelay: 0", None, None, ("adaptive", DEFAULT)),
    ],
)
def test_batch_policy(
    registration: Registration,
    yaml: str,
    fallback: ModelDefaults | None,
    setting: Any,
    expected: tuple[str, str],
) -> None:
    """A policy asked for wins, a delay or a batcher means window, else adaptive (design 9)."""
    options = _resolve(registration, yaml, fallback, batch_policy=setting)
    assert _found(options, "batch_policy") == (BatchPolicy(expected[0]), expected[1])


@pytest.mark.parametrize("name", ["response_timeout", "startup_timeout"])
def test_a_silent_yaml_hides_no_timeout(name: str) -> None:
    """Register parameter, yaml, models=, setting: TorchServe's quirk of reference 8.5 is gone."""
    setting: dict[str, Any] = {f"default_{name}": 5}
    fallback = ModelDefaults(**{name: 4})  # type: ignore[arg-type]
    key = {"response_timeout": "responseTimeout", "startup_timeout": "startupTimeout"}[name]
    registered = Registration(**{name: 2})  # type: ignore[arg-type]
    assert _found(_resolve(registered, f"{key}: 3", fallback, **setting), name) == (2, REGISTER)
    assert _found(_resolve(None, f"{key}: 3", fallback, **setting), name) == (3, YAML)
    assert _found(_resolve(None, "batchSize: 1", fallback, **setting), name) == (4, MODELS_KEY)
    assert _found(_resolve(None, "batchSize: 1", **setting), name) == (5, CONFIG_FILE)
    assert _found(_resolve(None, "batchSize: 1"), name) == (120, DEFAULT)


@pytest.mark.parametrize(
    ("registration", "yaml", "expected"),
    [
        (Registration(timeout=7), "batcher: {timeout: 8}", (7, REGISTER)),
        (Registration(), "batcher: {timeout: 8}\nclientTimeoutInMills: 1500", (8, YAML)),
        (Registration(), "batcher: {}\nclientTimeoutInMills: 1500", (1.5, YAML)),
        (Registration(), "batcher: {}", (60, BATCHER_DEFAULT)),
        (Registration(max_latency=5), "", (60, BATCHER_DEFAULT)),
        (Registration(), "clientTimeoutInMills: 0", (None, DEFAULT)),
    ],
)
def test_request_timeout(registration: Registration, yaml: str, expected: tuple[float | None, str]) -> None:
    """The batcher's timeout or the client timeout of the yaml, in seconds; none without either."""
    assert _found(_resolve(registration, yaml), "request_timeout") == expected


@pytest.mark.parametrize(
    ("yaml", "fallback", "setting", "devices", "expected", "source"),
    [
        ("minWorkers: 2\nmaxWorkers: 3", ModelDefaults(1, 1), 4, 8, (2, 3), YAML),
        ("minWorkers: 2", ModelDefaults(1, 5), 4, 8, (1, 5), MODELS_KEY),
        ("", ModelDefaults(min_workers=2), 4, 8, (2, 4), MODELS_KEY),
        ("", ModelDefaults(min_workers=6), 4, 8, (6, 6), MODELS_KEY),
        ("", ModelDefaults(max_workers=3), 4, 8, (3, 3), MODELS_KEY),
        ("", ModelDefaults(max_workers=6), 4, 8, (4, 6), MODELS_KEY),
        ("", ModelDefaults(3, 2), 4, 8, (4, 4), CONFIG_FILE),
        ("", None, 0, 8, (8, 8), DEFAULT),
        ("", None, 0, 0, (4, 4), DEFAULT),
    ],
)
def test_workers_at_startup(
    yaml: str,
    fallback: ModelDefaults | None,
    setting: int,
    devices: int,
    expected: tuple[int, int],
    source: str,
) -> None:
    """Yaml, models=, default_workers_per_model, GPUs, CPUs (reference 8.6)."""
    options = _resolve(
        None, yaml, fallback, at_startup=True, devices=devices, default_workers_per_model=setting
    )
    assert (options.min_workers, options.max_workers) == expected
    assert options.sources["min_workers"] == options.sources["max_workers"] == source


@pytest.mark.parametrize(
    ("registration", "yaml", "setting", "expected", "source"),
    [
        (Registration(initial_workers=5), "minWorkers: 2\nmaxWorkers: 3", 4, (2, 3), YAML),
        (Registration(initial_workers=5), "minWorkers: 3\nmaxWorkers: 2", 4, (5, 5), REGISTER),
        (Registration(initial_workers=0), "", 4, (0, 0), REGISTER),
        (Registration(initial_workers=-1), "", 4, (0, 0), REGISTER),
        (Registration(), "", 4, (4, 4), CONFIG_FILE),
        (Registration(), "", 0, (0, 0), DEFAULT),
        (Registration(min_workers=1, max_workers=3), "minWorkers: 2\nmaxWorkers: 3", 4, (1, 3), REGISTER),
        (Registration(min_workers=2), "", 4, (2, 2), REGISTER),
        (Registration(max_workers=2), "", 4, (2, 2), REGISTER),
        (Registration(max_workers=2, initial_workers=1), "", 4, (1, 2), REGISTER),
    ],
)
def test_workers_at_registration(
    registration: Registration, yaml: str, setting: int, expected: tuple[int, int], source: str
) -> None:
    """The range asked for, yaml, initial_workers, default_workers_per_model, none; models= is not asked."""
    options = _resolve(registration, yaml, ModelDefaults(7, 7), devices=8, default_workers_per_model=setting)
    assert (options.min_workers, options.max_workers) == expected
    assert options.sources["min_workers"] == source


def test_ranges_that_are_none_are_warned_of() -> None:
    """TorchServe's line for the yaml, one of ours for models=."""
    options = _resolve(None, "minWorkers: 2", ModelDefaults(3, 2), at_startup=True)
    assert options.warnings == (
        "Invalid model config in mar, minWorkers:2, maxWorkers:0",
        "models=: minWorkers=3 is above maxWorkers=2, both are ignored",
    )
    assert _resolve(None, "batchSize: 2").warnings == ()


def test_models_values_belong_to_name_and_version() -> None:
    """Another version's fallbacks do not count."""
    settings = Settings(
        models={"noop": {"2.0": ModelDefaults(batch_size=9)}, "other": {"1.0": ModelDefaults(batch_size=9)}}
    )
    options = resolve_options(
        "noop", "1.0", Registration(), None, settings, at_startup=False, device_count=0, cpu_count=1
    )
    assert options.batch_size == 1


def test_queue_and_retry_window() -> None:
    """The yaml's own numbers, 0 meaning none for the queue and never for retries."""
    options = _resolve(None, "jobQueueSize: 7\nmaxRetryTimeoutInSec: 0", job_queue_size=9, job_queue_bytes=10)
    assert _found(options, "job_queue_size") == (7, YAML)
    assert _found(options, "job_queue_bytes") == (10, CONFIG_FILE)
    assert _found(options, "max_retry_timeout") == (0, YAML)
    assert _found(_resolve(None, "jobQueueSize: 0", job_queue_size=9), "job_queue_size") == (9, CONFIG_FILE)


@pytest.mark.parametrize(
    ("registration", "yaml", "expected"),
    [
        (Registration(split_instances=True), "splitInstances: false", ("true", REGISTER)),
        (Registration(split_instances="False"), "", ("false", REGISTER)),
        (Registration(), "splitInstances: true", ("true", YAML)),
        (Registration(), "splitInstances: auto", ("false", CONFIG_FILE)),
    ],
)
def test_split_instances(registration: Registration, yaml: str, expected: tuple[str, str]) -> None:
    """Register parameter, yaml, setting."""
    assert _found(_resolve(registration, yaml, split_instances="false"), "split_instances") == expected


def test_devices() -> None:
    """GPUs where there are any, within number_of_gpu."""
    assert _found(_resolve(devices=2), "device_type") == ("gpu", DEFAULT)
    assert _found(_resolve(devices=2, number_of_gpu=0), "device_type") == ("cpu", DEFAULT)
    assert _found(_resolve(None, "deviceType: cpu", devices=2), "device_type") == ("cpu", YAML)
    assert _found(_resolve(None, "deviceIds: [1, 0]", devices=2), "device_ids") == ((1, 0), YAML)
    assert _resolve(at_startup=True, devices=8, number_of_gpu=3).min_workers == 3


def test_a_gpu_that_is_not_there_becomes_the_cpu() -> None:
    """As in TorchServe, but not silently."""
    options = _resolve(None, "deviceType: gpu")
    assert options.device_type == "cpu"
    assert options.warnings == (
        "model-config.yaml: deviceType=gpu: no GPU is available, the model runs on the CPU",
    )


@pytest.mark.parametrize(("ids", "devices"), [("[1, 2]", 2), ("[0]", 0), ("[0, 1]", 1)])
def test_devices_that_are_not_there_leave_the_list_out(ids: str, devices: int) -> None:
    """All must be below the number of GPUs, else the list is ignored with a warning (reference 9)."""
    options = _resolve(None, f"deviceIds: {ids}", devices=devices)
    assert _found(options, "device_ids") == ((), DEFAULT)
    reason = f"numbers below {devices}, that of the GPUs, are needed"
    assert options.warnings == (f"model-config.yaml: deviceIds={ids} is ignored: {reason}",)


def test_on_the_cpu_no_list_of_devices_counts() -> None:
    """``deviceType: cpu`` is not asked twice."""
    options = _resolve(None, "deviceType: cpu\ndeviceIds: [7]", devices=2)
    assert (options.device_type, options.device_ids, options.warnings) == ("cpu", (), ())


@pytest.mark.parametrize(
    ("yaml", "level", "processes", "threads"),
    [
        ("parallelLevel: 2", 0, 0, 0),
        ("parallelType: tp", 0, 0, 0),
        ("parallelLevel: 2\nparallelType: tp", 2, 2, 0),
        ("parallelLevel: 2\nparallelType: pp", 2, 2, 0),
        ("parallelLevel: 3\nparallelType: pptp", 3, 3, 0),
        ("parallelLevel: 2\nparallelType: custom", 2, 0, 0),
        ("parallelType: custom\ntorchrun: {nproc-per-node: 2}", 2, 2, 0),
        ("parallelType: pp\ntorchrun: {nproc-per-node: 4, OMP_NUMBER_THREADS: 2}\nparallelLevel: 8", 4, 4, 2),
        ("parallelType: tp\ntorchrun: {}", 1, 1, 0),
        ("torchrun: {nproc-per-node: 4}", 0, 0, 0),
    ],
)
def test_devices_and_processes_of_one_worker(yaml: str, level: int, processes: int, threads: int) -> None:
    """A level needs a type, or torchrun, which sets it; a custom type is one process (reference 9, 18.1)."""
    options = _resolve(None, yaml)
    assert (options.parallel_level, options.processes, options.rank_threads) == (level, processes, threads)


@pytest.mark.parametrize(
    ("yaml", "workers", "warned"),
    [
        ("parallelType: tp\ntorchrun: {nproc-per-node: 2}\nminWorkers: 2\nmaxWorkers: 2", (2, 2), False),
        ("parallelType: tp\ntorchrun: {nproc-per-node: 2}\nminWorkers: 1\nmaxWorkers: 9", (1, 2), True),
        ("parallelType: tp\ntorchrun: {nproc-per-node: 3}\nminWorkers: 2\nmaxWorkers: 2", (1, 1), True),
        (
            "parallelType: tp\nparallelLevel: 2\ndeviceIds: [0, 3]\nminWorkers: 2\nmaxWorkers: 2",
            (1, 1),
            True,
        ),
        (
            "parallelType: tp\ntorchrun: {nproc-per-node: 2}\ndeviceType: cpu\nminWorkers: 3\nmaxWorkers: 3",
            (3, 3),
            False,
        ),
        ("parallelType: tp\ntorchrun: {nproc-per-node: 8}\nminWorkers: 3\nmaxWorkers: 3", (3, 3), False),
        ("parallelType: tp\ntorchrun: {nproc-per-node: 2}", (2, 2), False),
    ],
)
def test_as_many_workers_as_groups_of_gpus(yaml: str, workers: tuple[int, int], warned: bool) -> None:
    """On four GPUs, workers of several are capped, at a start without a word (reference 18.3)."""
    options = _resolve(None, yaml, at_startup=True, devices=4)
    assert (options.min_workers, options.max_workers) == workers
    assert bool(options.warnings) == warned


def test_torchrun_alone_is_told_to_have_no_effect() -> None:
    """TorchServe starts one process then, and does not say why."""
    assert _resolve(None, "torchrun: {nproc-per-node: 4}").warnings == (
        "model-config.yaml: torchrun has no effect without a parallelType (tp, pp, pptp, custom)",
    )


# All keys and sources

_ALL: list[tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any], dict[str, object]]] = [
    # option, registration, yaml, models=, config.properties, value by source
    (
        "batch_size",
        {"batch_size": 9},
        "batchSize: 8",
        {"batch_size": 7},
        {},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, DEFAULT: 1},
    ),
    (
        "batch_size",
        {"max_batch_size": 9},
        "batcher: {maxBatchSize: 8}\nbatchSize: 6",
        {"batch_size": 7},
        {},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, DEFAULT: 1},
    ),
    (
        "max_batch_delay",
        {"max_batch_delay": 9},
        "maxBatchDelay: 8",
        {"max_batch_delay": 7},
        {},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, DEFAULT: 100},
    ),
    (
        "response_timeout",
        {"response_timeout": 9},
        "responseTimeout: 8",
        {"response_timeout": 7},
        {"default_response_timeout": 6},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, CONFIG_FILE: 6, DEFAULT: 120},
    ),
    (
        "startup_timeout",
        {"startup_timeout": 9},
        "startupTimeout: 8",
        {"startup_timeout": 7},
        {"default_startup_timeout": 6},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, CONFIG_FILE: 6, DEFAULT: 120},
    ),
    (
        "min_workers",
        {"min_workers": 9},
        "minWorkers: 8\nmaxWorkers: 8",
        {"min_workers": 7},
        {"default_workers_per_model": 6},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, CONFIG_FILE: 6, DEFAULT: 4},
    ),
    (
        "max_workers",
        {"max_workers": 9},
        "minWorkers: 8\nmaxWorkers: 8",
        {"max_workers": 7},
        {"default_workers_per_model": 6},
        {REGISTER: 9, YAML: 8, MODELS_KEY: 7, CONFIG_FILE: 6, DEFAULT: 4},
    ),
    (
        "batch_policy",
        {"batch_policy": "greedy"},
        "batchPolicy: window",
        {},
        {"batch_policy": "greedy"},
        {REGISTER: "greedy", YAML: "window", CONFIG_FILE: "greedy", DEFAULT: "adaptive"},
    ),
    (
        "split_instances",
        {"split_instances": "true"},
        "splitInstances: false",
        {},
        {"split_instances": "true"},
        {REGISTER: "true", YAML: "false", CONFIG_FILE: "true", DEFAULT: "auto"},
    ),
    (
        "request_timeout",
        {"timeout": 9},
        "clientTimeoutInMills: 8000",
        {},
        {},
        {REGISTER: 9, YAML: 8.0},
    ),
    (
        "job_queue_size",
        {},
        "jobQueueSize: 8",
        {},
        {"job_queue_size": 6},
        {YAML: 8, CONFIG_FILE: 6, DEFAULT: 100},
    ),
    (
        "service_envelope",
        {},
        "serviceEnvelope: json",
        {},
        {"service_envelope": "kserve"},
        {YAML: "json", CONFIG_FILE: "kserve", DEFAULT: ""},
    ),
    (
        "autoscale",
        {"autoscale": False},
        "autoscale: true",
        {},
        {"autoscale": True},
        {REGISTER: False, YAML: True, CONFIG_FILE: True, DEFAULT: False},
    ),
    *(
        (
            option,
            {option: 100},
            f"{key}: 101",
            {},
            {option: 102},
            {REGISTER: 100, YAML: 101, CONFIG_FILE: 102, DEFAULT: default},
        )
        for option, key, default in (
            ("autoscale_target_wait", "autoscaleTargetWait", 100),
            ("autoscale_up_pause", "autoscaleUpPause", 2000),
            ("autoscale_down_pause", "autoscaleDownPause", 60_000),
            ("max_worker_memory", "maxWorkerMemory", 0),
            ("max_worker_requests", "maxWorkerRequests", 0),
        )
    ),
    (
        "worker_threads",
        {"worker_threads": 100},
        "workerThreads: 101",
        {},
        {},
        {REGISTER: 100, YAML: 101, DEFAULT: 0},
    ),
    *(
        (
            option,
            {},
            f"{key}: {value}",
            {},
            {},
            {YAML: value if isinstance(value, int) else True, DEFAULT: default},
        )
        for option, key, value, default in (
            ("max_retry_timeout", "maxRetryTimeoutInSec", 0, 300),
            ("sequence_max_idle_ms", "sequenceMaxIdleMSec", 8, 0),
            ("sequence_timeout_ms", "sequenceTimeoutMSec", 8, 0),
            ("max_num_sequence", "maxNumSequence", 8, 1),
            ("max_sequence_job_queue_size", "maxSequenceJobQueueSize", 8, 1),
            ("use_job_ticket", "useJobTicket", "true", False),
            ("use_venv", "useVenv", "true", False),
            ("sequence_batching", "sequenceBatching", "true", False),
            ("continuous_batching", "continuousBatching", "true", False),
            ("async_communication", "asyncCommunication", "true", False),
        )
    ),
    (
        "signature",
        {},
        "signature: {inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]}",
        {},
        {},
        {YAML: Signature((TensorSpec("x", "FP32", (-1, 2)),)), DEFAULT: Signature()},
    ),
    (
        "traffic",
        {},
        'traffic: {"1.0": 90, "2.0": 10}',
        {},
        {},
        {YAML: {"1.0": 90, "2.0": 10}, DEFAULT: None},
    ),
    (
        "resources",
        {},
        "resources: {num_gpus: 1}",
        {},
        {"worker_resources": '{"num_cpus": 2}'},
        {YAML: Demand(num_gpus=1), CONFIG_FILE: Demand(num_cpus=2), DEFAULT: Demand()},
    ),
    ("placement", {}, "placement: pack", {}, {}, {YAML: "pack", DEFAULT: "spread"}),
    ("idempotent", {}, "idempotent: true", {}, {}, {YAML: True, DEFAULT: False}),
    ("device_type", {}, "deviceType: gpu", {}, {}, {YAML: "gpu", DEFAULT: "gpu"}),
    ("device_ids", {}, "deviceIds: [1]", {}, {}, {YAML: (1,), DEFAULT: ()}),
    ("parallel_type", {}, "parallelType: pp", {}, {}, {YAML: "pp", DEFAULT: ""}),
    ("parallel_level", {}, "parallelType: pp\nparallelLevel: 2", {}, {}, {YAML: 2, DEFAULT: 0}),
    ("processes", {}, "parallelType: tp\ntorchrun: {nproc-per-node: 2}", {}, {}, {YAML: 2, DEFAULT: 0}),
]


@pytest.mark.parametrize(
    ("option", "registration", "yaml", "fallback", "settings", "values"),
    _ALL,
    ids=[f"{option}-{yaml.partition(':')[0]}" for option, _, yaml, *_ in _ALL],
)
def test_each_key_by_rank(
    option: str,
    registration: dict[str, Any],
    yaml: str,
    fallback: dict[str, Any],
    settings: dict[str, Any],
    values: dict[str, object],
) -> None:
    """Registration, yaml, models=, config.properties, default: of those that know a key the first one
    counts (reference 8.5, 8.6, 9; a yaml that is silent on a timeout hides nothing).
    """
    given = {
        REGISTER: Registration(**registration),
        YAML: yaml,
        MODELS_KEY: ModelDefaults(**fallback),
        CONFIG_FILE: settings,
    }
    devices = 4 if option in {"device_type", "device_ids", "parallel_level", "processes"} else 0
    for source in (REGISTER, YAML, MODELS_KEY, CONFIG_FILE, DEFAULT):
        if source in values:
            options = _resolve(
                given.get(REGISTER, Registration()),  # type: ignore[arg-type]
                str(given.get(YAML, "")),
                given.get(MODELS_KEY, ModelDefaults()),  # type: ignore[arg-type]
                at_startup=True,
                devices=devices,
                **given.get(CONFIG_FILE, {}),  # type: ignore[arg-type]
            )
            assert _found(options, option) == (values[source], source)
        given.pop(source, None)


def test_every_key_of_the_yaml_has_its_rank_tested() -> None:
    """The test above leaves no key out."""
    tested = {line.partition(":")[0] for _, _, yaml, *_ in _ALL for line in yaml.splitlines()}

    assert tested == set(CONFIG_KEYS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("default", DEFAULT),
        ("/etc/config.properties", CONFIG_FILE),
        ("environment TS_JOB_QUEUE_SIZE", ENVIRONMENT),
        ("flag --job-queue-size", COMMAND_LINE),
    ],
)
def test_settings_bring_their_source(source: str, expected: str) -> None:
    """With the loaded sources, a setting is traced to where it was set."""
    options = _resolve(sources=dict.fromkeys(KEYS, source))
    assert options.sources["job_queue_size"] == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"batch_size": -2}, "batch_size=-2: a whole number of at least 1 is needed"),
        ({"max_batch_delay": -5}, "max_batch_delay=-5: a whole number of at least 0 is needed"),
        ({"response_timeout": 0}, "response_timeout=0: a whole number of at least 1 is needed"),
        ({"max_batch_delay": 10**400}, "max_batch_delay: a whole number of at most 2147483647 is needed"),
        ({"timeout": 2**31}, "timeout: a whole number of at most 2147483647 is needed"),
        ({"startup_timeout": -3}, "startup_timeout=-3: a whole number of at least 1 is needed"),
        ({"max_batch_size": 0}, "max_batch_size=0: a whole number of at least 1 is needed"),
        ({"max_latency": 0}, "max_latency=0: a whole number of at least 1 is needed"),
        ({"timeout": -1}, "timeout=-1: a whole number of at least 1 is needed"),
        ({"min_workers": -1}, "min_workers=-1: a whole number of at least 0 is needed"),
        ({"batch_policy": "fast"}, "batch_policy=fast: one of adaptive, greedy, window is needed"),
        ({"split_instances": "maybe"}, "split_instances=maybe: one of auto, true, false is needed"),
        (
            {"min_workers": 2, "max_workers": 1},
            "max_workers=1: a whole number of at least min_workers=2 is needed",
        ),
        (
            {"batch_size": 2, "max_batch_size": 3},
            "batch_size=2 and max_batch_size=3 are the same setting, give one of them",
        ),
        (
            {"max_batch_delay": 2, "max_latency": 3},
            "max_batch_delay=2 and max_latency=3 are the same setting, give one of them",
        ),
    ],
)
def test_parameters_out_of_range_are_bad_requests(parameters: dict[str, Any], message: str) -> None:
    """The message names parameter, value and what is allowed."""
    with pytest.raises(BadRequest) as error:
        Registration(**parameters)
    assert str(error.value) == message


def test_torchserves_marks_for_not_given_are_understood() -> None:
    """-1 and 0 as batch size, -1 and -100 as delay, -1 as a timeout, an empty policy."""
    registration = Registration(
        batch_size=0,
        max_batch_delay=-100,
        response_timeout=-1,
        startup_timeout=-1,
        batch_policy="",
        split_instances="",
    )
    options = _resolve(registration)
    assert options == ModelOptions(sources=dict.fromkeys(options.sources, DEFAULT))


def test_no_config_is_an_empty_config() -> None:
    """An archive without yaml and one with an empty yaml are served alike."""
    settings = Settings()
    with_none, with_empty = (
        resolve_options(
            "m", "1", Registration(), config, settings, at_startup=True, device_count=0, cpu_count=2
        )
        for config in (None, ModelConfig())
    )
    assert with_none == with_empty


@pytest.mark.parametrize(
    ("yaml", "expected", "warned"),
    [
        ("sequenceBatching: true\nsequenceMaxIdleMSec: 8", (8, YAML), False),
        ("sequenceBatching: true\nsequenceMaxIdleMSec: 0", (60_000, DEFAULT), True),
        ("sequenceBatching: true", (60_000, DEFAULT), True),
        ("sequenceMaxIdleMSec: 8", (8, YAML), False),
        ("", (0, DEFAULT), False),
    ],
)
def test_sequences_end_by_idleness(yaml: str, expected: tuple[int, str], warned: bool) -> None:
    """Where sequences are kept and no idle time is given, it is a minute, with a warning (reference 8.9)."""
    options = _resolve(yaml=yaml)

    assert _found(options, "sequence_max_idle_ms") == expected
    assert bool(options.warnings) is warned


@pytest.mark.parametrize(
    ("yaml", "settings", "expected"),
    [
        ("deviceType: gpu", {}, (Demand(num_gpus=1), "gpu", 1)),
        ("deviceType: gpu", {"worker_resources": '{"num_gpus": 0.5}'}, (Demand(num_gpus=0.5), "gpu", 1)),
        ("deviceType: gpu\nresources: {num_cpus: 2}", {}, (Demand(num_cpus=2), "gpu", 1)),
        ("resources: {num_gpus: 2}", {}, (Demand(num_gpus=2), "gpu", 1)),
        ("", {}, (Demand(), "cpu", 1)),
        ("resources: local", {}, ("local", "cpu", 4)),
    ],
)
def test_devices_of_other_machines(yaml: str, settings: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """A model for GPUs asks for one if nothing says how many; those of the server, and its cores, count for
    nothing there: by default one worker is started.
    """
    options = _resolve(None, yaml, at_startup=True, worker_launcher="agents", **settings)
    assert (options.resources, options.device_type, options.min_workers) == expected
    assert options.warnings == ()
