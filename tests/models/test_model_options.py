"""How the options of a model version are found."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver.errors import BadRequest
from modelserver.models.config import ModelConfig, parse_model_config
from modelserver.models.options import (
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
from modelserver.settings.keys import KEYS
from modelserver.settings.model_defaults import ModelDefaults
from modelserver.settings.settings import Settings


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
    """GPUs where there are any, within number_of_gpu; the list is taken as given."""
    assert _found(_resolve(devices=2), "device_type") == ("gpu", DEFAULT)
    assert _found(_resolve(devices=2, number_of_gpu=0), "device_type") == ("cpu", DEFAULT)
    assert _found(_resolve(None, "deviceType: cpu", devices=2), "device_type") == ("cpu", YAML)
    assert _resolve(None, "deviceIds: [1, 5]", devices=2).device_ids == (1, 5)
    assert _resolve(at_startup=True, devices=8, number_of_gpu=3).min_workers == 3


def test_a_gpu_that_is_not_there_becomes_the_cpu() -> None:
    """As in TorchServe, but not silently."""
    options = _resolve(None, "deviceType: gpu")
    assert options.device_type == "cpu"
    assert options.warnings == (
        "model-config.yaml: deviceType=gpu: there is no GPU to use, the model runs on the CPU",
    )


def test_parallel_level_needs_a_type_or_torchrun() -> None:
    """Reference 9."""
    assert _resolve(None, "parallelLevel: 2").parallel_level == 0
    assert _resolve(None, "parallelLevel: 2\nparallelType: tp").parallel_level == 2
    assert _resolve(None, "torchrun: {nproc-per-node: 4}").parallel_level == 4


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
