import pytest
from tests.models.options.conftest import resolve

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
    ModelOptions,
    Registration,
)
from modelserver.models.options.signature import Signature
from modelserver.models.options.table import CONFIG_KEYS
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import KEYS

_BATCHES = "batchSize: 4\nmaxBatchDelay: 7"
_ADAPTIVE = ("adaptive", DEFAULT)
_PAIRS = "parallelType: tp\ntorchrun: {nproc-per-node: 2}"


def _resolved(options, name):
    return getattr(options, name), options.sources[name]


def test_absent_values_are_the_defaults():
    """TorchServe's marks: -1 and 0 as batch size, -1 and -100 as delay, -1 as timeout, an empty policy."""
    options = resolve()
    assert options == ModelOptions(sources=dict.fromkeys(options.sources, DEFAULT))
    fields = set(ModelOptions.__slots__) - {"sources", "warnings", "values"}
    assert set(options.sources) == fields | set(options.values)

    numbers = {"batch_size": 0, "max_batch_delay": -100, "response_timeout": -1, "startup_timeout": -1}
    options = resolve(Registration(**numbers, batch_policy="", split_instances=""))
    assert options == ModelOptions(sources=dict.fromkeys(options.sources, DEFAULT))

    assert resolve() == resolve(yaml="{}")


@pytest.mark.parametrize(
    ("registration", "yaml", "fallback", "size", "delay"),
    [
        (Registration(batch_size=8, max_batch_delay=5), _BATCHES, 2, (8, REGISTER), (5, REGISTER)),
        (Registration(max_batch_size=8, max_latency=5), "batcher: {}", 2, (8, REGISTER), (5, REGISTER)),
        (Registration(), _BATCHES, 2, (4, YAML), (7, YAML)),
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
def test_batch_size_and_delay_are_resolved_in_order(registration, yaml, fallback, size, delay):
    """Register parameter, yaml, models=, default; a batcher block brings 32 and 500 ms (reference 8.6)."""
    defaults = ModelDefaults(batch_size=fallback, max_batch_delay=fallback) if fallback else None
    options = resolve(registration, yaml, defaults)
    assert _resolved(options, "batch_size") == size
    assert _resolved(options, "max_batch_delay") == delay


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
        (Registration(batch_size=8), "batchSize: 4", ModelDefaults(batch_size=2), None, _ADAPTIVE),
        (Registration(max_batch_delay=-1), "maxBatchDelay: 0", None, None, _ADAPTIVE),
    ],
)
def test_batch_policy_is_resolved(registration, yaml, fallback, setting, expected):
    """A policy asked for wins, a delay or a batcher means window, else adaptive (design 9)."""
    options = resolve(registration, yaml, fallback, batch_policy=setting)
    assert _resolved(options, "batch_policy") == expected


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
def test_request_timeout_is_resolved(registration, yaml, expected):
    assert _resolved(resolve(registration, yaml), "request_timeout") == expected


@pytest.mark.parametrize(
    ("yaml", "fallback", "setting", "devices", "expected", "source"),
    [
        ("minWorkers: 2\nmaxWorkers: 3", ModelDefaults(1, 1), 4, 8, (2, 3), YAML),
        ("minWorkers: 2", ModelDefaults(1, 5), 4, 8, (1, 5), MODELS_KEY),
        ("minWorkers: 0\nmaxWorkers: 1\nload: on-demand", ModelDefaults(1, 2), 4, 8, (0, 1), YAML),
        ("maxWorkers: 3\nload: on-demand", ModelDefaults(1, 2), 4, 8, (0, 3), YAML),
        ("minWorkers: 2\nload: on-demand", ModelDefaults(1, 2), 4, 8, (2, 2), YAML),
        ("load: on-demand", ModelDefaults(1, 2), 4, 8, (1, 2), MODELS_KEY),
        ("load: on-demand", ModelDefaults(max_workers=3), 4, 8, (0, 3), MODELS_KEY),
        ("load: on-demand", None, 4, 8, (0, 1), DEFAULT),
        ("", ModelDefaults(min_workers=2), 4, 8, (2, 4), MODELS_KEY),
        ("", ModelDefaults(min_workers=6), 4, 8, (6, 6), MODELS_KEY),
        ("", ModelDefaults(max_workers=3), 4, 8, (3, 3), MODELS_KEY),
        ("", ModelDefaults(max_workers=6), 4, 8, (4, 6), MODELS_KEY),
        ("", ModelDefaults(3, 2), 4, 8, (4, 4), CONFIG_FILE),
        ("", None, 0, 8, (8, 8), DEFAULT),
        ("", None, 0, 0, (4, 4), DEFAULT),
    ],
)
def test_workers_at_startup_are_resolved(yaml, fallback, setting, devices, expected, source):
    """Yaml, models=, default_workers_per_model, GPUs, CPUs (reference 8.6)."""
    options = resolve(
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
        (Registration(load="on-demand"), "", 4, (7, 7), MODELS_KEY),
        (Registration(load="on-demand", min_workers=1), "maxWorkers: 3", 4, (1, 1), REGISTER),
        (Registration(load="on-demand", max_workers=2), "minWorkers: 1", 4, (0, 2), REGISTER),
    ],
)
def test_workers_at_registration_are_resolved(registration, yaml, setting, expected, source):
    options = resolve(registration, yaml, ModelDefaults(7, 7), devices=8, default_workers_per_model=setting)
    assert (options.min_workers, options.max_workers) == expected
    assert options.sources["min_workers"] == source


def test_ranges_that_are_none_are_warned_of():
    """TorchServe's line for the yaml, one of ours for models=."""
    options = resolve(None, "minWorkers: 2", ModelDefaults(3, 2), at_startup=True)
    assert options.warnings == (
        "Invalid model config in mar, minWorkers:2, maxWorkers:0",
        "models=: minWorkers=3 is above maxWorkers=2, both are ignored",
    )
    assert resolve(None, "batchSize: 2").warnings == ()

    assert resolve(None, "torchrun: {nproc-per-node: 4}").warnings == (
        "model-config.yaml: torchrun has no effect without a parallelType (tp, pp, pptp, custom)",
    )


def test_models_values_belong_to_name_and_version():
    of_nine = ModelDefaults(batch_size=9)
    assert resolve(models={"noop": {"2.0": of_nine}, "other": {"1.0": of_nine}}).batch_size == 1

    options = resolve(None, "jobQueueSize: 7\nmaxRetryTimeoutInSec: 0", job_queue_size=9, job_queue_bytes=10)
    assert _resolved(options, "job_queue_size") == (7, YAML)
    assert _resolved(options, "job_queue_bytes") == (10, CONFIG_FILE)
    assert _resolved(options, "max_retry_timeout") == (0, YAML)
    assert _resolved(resolve(None, "jobQueueSize: 0", job_queue_size=9), "job_queue_size") == (9, CONFIG_FILE)


def test_devices_are_resolved():
    """GPUs within number_of_gpu; one that is not there becomes the CPU as in TorchServe, but not silently."""
    assert _resolved(resolve(devices=2), "device_type") == ("gpu", DEFAULT)
    assert _resolved(resolve(devices=2, number_of_gpu=0), "device_type") == ("cpu", DEFAULT)
    assert _resolved(resolve(None, "deviceType: cpu", devices=2), "device_type") == ("cpu", YAML)
    assert _resolved(resolve(None, "deviceIds: [1, 0]", devices=2), "device_ids") == ((1, 0), YAML)
    assert resolve(at_startup=True, devices=8, number_of_gpu=3).min_workers == 3

    options = resolve(None, "deviceType: cpu\ndeviceIds: [7]", devices=2)
    assert (options.device_type, options.device_ids, options.warnings) == ("cpu", (), ())

    options = resolve(None, "deviceType: gpu")
    assert options.device_type == "cpu"
    (warning,) = options.warnings
    assert warning == "model-config.yaml: deviceType=gpu: no GPU is available, the model runs on the CPU"


@pytest.mark.parametrize(("ids", "devices"), [("[1, 2]", 2), ("[0]", 0), ("[0, 1]", 1)])
def test_devices_that_are_not_there_leave_the_list_out(ids, devices):
    """All must be below the number of GPUs, else the list is ignored with a warning (reference 9)."""
    options = resolve(None, f"deviceIds: {ids}", devices=devices)
    assert _resolved(options, "device_ids") == ((), DEFAULT)
    reason = f"numbers below {devices}, that of the GPUs, are needed"
    assert options.warnings == (f"model-config.yaml: deviceIds={ids} is ignored: {reason}",)


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
def test_devices_and_processes_of_a_worker_are_resolved(yaml, level, processes, threads):
    """A level needs a type, or torchrun, which sets it; a custom type is one process (reference 9, 18.1)."""
    options = resolve(None, yaml)
    assert (options.parallel_level, options.processes, options.rank_threads) == (level, processes, threads)


@pytest.mark.parametrize(
    ("yaml", "workers", "warned"),
    [
        (f"{_PAIRS}\nminWorkers: 2\nmaxWorkers: 2", (2, 2), False),
        (f"{_PAIRS}\nminWorkers: 1\nmaxWorkers: 9", (1, 2), True),
        ("parallelType: tp\ntorchrun: {nproc-per-node: 3}\nminWorkers: 2\nmaxWorkers: 2", (1, 1), True),
        ("parallelType: tp\nparallelLevel: 2\ndeviceIds: [0, 3]\nminWorkers: 2\nmaxWorkers: 2", (1, 1), True),
        (f"{_PAIRS}\ndeviceType: cpu\nminWorkers: 3\nmaxWorkers: 3", (3, 3), False),
        ("parallelType: tp\ntorchrun: {nproc-per-node: 8}\nminWorkers: 3\nmaxWorkers: 3", (3, 3), False),
        (_PAIRS, (2, 2), False),
    ],
)
def test_workers_are_capped_by_groups_of_gpus(yaml, workers, warned):
    """On four GPUs, workers of several are capped, at a start without a word (reference 18.3)."""
    options = resolve(None, yaml, at_startup=True, devices=4)
    assert (options.min_workers, options.max_workers) == workers
    assert bool(options.warnings) == warned


def _key(option, yaml, in_yaml, default=None, **by):
    """An option: what each source says of it, and what its value then is.

    ``by`` a registration, by ``models=`` and by config.properties: the value of a parameter of that
    name, or of the one that is named.
    """
    words = {REGISTER: "registered", MODELS_KEY: "models", CONFIG_FILE: "setting"}
    stated = {source: by[word] for source, word in words.items() if word in by}
    named = {source: each if isinstance(each, dict) else {option: each} for source, each in stated.items()}
    values = {source: next(iter(value.values())) for source, value in named.items()}
    if option == "resources":
        values[CONFIG_FILE] = Demand(num_cpus=2)
    return option, {**named, YAML: yaml}, {**values, YAML: in_yaml, DEFAULT: default}


_BOTH = "minWorkers: 8\nmaxWorkers: 8"
_WORKERS = {"default_workers_per_model": 6}
_CPUS = {"worker_resources": '{"num_cpus": 2}'}
_POLICY = {"registered": "greedy", "setting": "greedy"}
_SPLIT = {"registered": "true", "setting": "true"}
_FORMER = "batcher: {maxBatchSize: 8}\nbatchSize: 6"
_TENSOR = "signature: {inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]}"
_ALL = [
    _key("batch_size", "batchSize: 8", 8, 1, registered=9, models=7),
    _key("batch_size", _FORMER, 8, 1, registered={"max_batch_size": 9}, models=7),
    _key("max_batch_delay", "maxBatchDelay: 8", 8, 100, registered=9, models=7),
    *(
        _key(name, f"{key}: 8", 8, 120, registered=9, models=7, setting={f"default_{name}": 6})
        for name, key in (("response_timeout", "responseTimeout"), ("startup_timeout", "startupTimeout"))
    ),
    _key("min_workers", _BOTH, 8, 4, registered=9, models=7, setting=_WORKERS),
    _key("max_workers", _BOTH, 8, 4, registered=9, models=7, setting=_WORKERS),
    _key("batch_policy", "batchPolicy: Window", "window", "adaptive", **_POLICY),
    _key("split_instances", "splitInstances: false", "false", "auto", **_SPLIT),
    _key("request_timeout", "clientTimeoutInMills: 8000", 8.0, registered={"timeout": 9}),
    _key("job_queue_size", "jobQueueSize: 8", 8, 100, setting=6),
    _key("service_envelope", "serviceEnvelope: json", "json", "", setting="kserve"),
    _key("route", "route: /api", "/api", None, registered="/shop"),
    _key("load", "load: on-demand", "on-demand", "at-start", registered="at-start", setting="on-demand"),
    _key("idle_timeout", "idleTimeout: 101", 101, 300, registered=100, setting=102),
    _key("pin", "pin: true", True, False, registered=False),
    _key("prewarm", "prewarm: true", True, False, registered=False),
    _key("autoscale", "autoscale: true", True, False, registered=False, setting=True),
    _key("autoscale_target_wait", "autoscaleTargetWait: 101", 101, 100, registered=100, setting=102),
    _key("autoscale_up_pause", "autoscaleUpPause: 101", 101, 2000, registered=100, setting=102),
    _key("autoscale_down_pause", "autoscaleDownPause: 101", 101, 60_000, registered=100, setting=102),
    _key("max_worker_memory", "maxWorkerMemory: 101", 101, 0, registered=100, setting=102),
    _key("max_worker_requests", "maxWorkerRequests: 101", 101, 0, registered=100, setting=102),
    _key("worker_threads", "workerThreads: 101", 101, 0, registered=100),
    _key("max_retry_timeout", "maxRetryTimeoutInSec: 0", 0, 300),
    _key("sequence_max_idle_ms", "sequenceMaxIdleMSec: 8", 8, 0),
    _key("sequence_timeout_ms", "sequenceTimeoutMSec: 8", 8, 0),
    _key("max_num_sequence", "maxNumSequence: 8", 8, 1),
    _key("max_sequence_job_queue_size", "maxSequenceJobQueueSize: 8", 8, 1),
    _key("use_job_ticket", "useJobTicket: true", True, False),
    _key("use_venv", "useVenv: true", True, False),
    _key("sequence_batching", "sequenceBatching: true", True, False),
    _key("continuous_batching", "continuousBatching: true", True, False),
    _key("async_communication", "asyncCommunication: true", True, False),
    _key("signature", _TENSOR, Signature((TensorSpec("x", "FP32", (-1, 2)),)), Signature()),
    _key("traffic", 'traffic: {"1.0": 90, "2.0": 10}', {"1.0": 90, "2.0": 10}),
    _key("resources", "resources: {num_gpus: 1}", Demand(num_gpus=1), Demand(), setting=_CPUS),
    _key("placement", "placement: pack", "pack", "spread"),
    _key("idempotent", "idempotent: true", True, False),
    _key("device_type", "deviceType: gpu", "gpu", "gpu"),
    _key("device_ids", "deviceIds: [1]", (1,), ()),
    _key("parallel_type", "parallelType: pp", "pp", ""),
    _key("parallel_level", "parallelType: pp\nparallelLevel: 2", 2, 0),
    _key("processes", _PAIRS, 2, 0),
]


@pytest.mark.parametrize(
    ("option", "sources", "values"),
    _ALL,
    ids=[f"{option}-{sources[YAML].partition(':')[0]}" for option, sources, _ in _ALL],
)
def test_first_source_that_knows_a_key_counts(option, sources, values):
    """Registration, yaml, models=, config.properties, default: of those that know a key the first one
    counts (reference 8.5, 8.6, 9; a yaml that is silent on a timeout hides nothing).
    """
    devices = 4 if option in {"device_type", "device_ids", "parallel_level", "processes"} else 0
    left = dict(sources)
    for source in (REGISTER, YAML, MODELS_KEY, CONFIG_FILE, DEFAULT):
        if source in values:
            options = resolve(
                Registration(**left.get(REGISTER, {})),
                left.get(YAML, "useVenv: false" if source == MODELS_KEY else ""),
                ModelDefaults(**left.get(MODELS_KEY, {})),
                at_startup=True,
                devices=devices,
                **left.get(CONFIG_FILE, {}),
            )
            assert _resolved(options, option) == (values[source], source)
        left.pop(source, None)


def test_every_key_of_the_yaml_has_its_rank_tested():
    tested = {line.partition(":")[0] for _, sources, _ in _ALL for line in sources[YAML].splitlines()}
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
def test_settings_bring_their_source(source, expected):
    options = resolve(sources=dict.fromkeys(KEYS, source))
    assert options.sources["job_queue_size"] == expected


_SAME = "are the same setting, give one of them"


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
        ({"batch_size": 2, "max_batch_size": 3}, f"batch_size=2 and max_batch_size=3 {_SAME}"),
        ({"max_batch_delay": 2, "max_latency": 3}, f"max_batch_delay=2 and max_latency=3 {_SAME}"),
    ],
)
def test_parameters_out_of_range_are_bad_requests(parameters, message):
    with pytest.raises(BadRequest) as error:
        Registration(**parameters)
    assert str(error.value) == message


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
def test_sequences_end_by_idleness(yaml, expected, warned):
    """Where sequences are kept and no idle time is given, it is a minute, with a warning (reference 8.9)."""
    options = resolve(yaml=yaml)
    assert _resolved(options, "sequence_max_idle_ms") == expected
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
def test_devices_of_other_machines_are_resolved(yaml, settings, expected):
    options = resolve(None, yaml, at_startup=True, worker_launcher="agents", **settings)
    assert (options.resources, options.device_type, options.min_workers) == expected
    assert options.warnings == ()
