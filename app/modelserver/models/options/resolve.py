"""Resolves a version's options from registration, model-config.yaml, ``models=`` and settings.

Each option is the first one given in the order of reference 8.5 and 8.6, except that a yaml without a timeout
does not hide other sources. The batch policy follows the design's section 9: a given policy wins, a given
delay means window, otherwise it is adaptive.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from modelserver.engine.demand import Demand
from modelserver.errors import BadRequest
from modelserver.models.options.option import options_of, parameter, parameters_of
from modelserver.models.options.resources import parse_resources
from modelserver.models.options.signature import Signature
from modelserver.models.options.table import (
    ON_DEMAND,
    OPTIONS,
    RANKED,
    Batcher,
    CommonOptions,
    ModelConfig,
    Torchrun,
)
from modelserver.models.options.values import anything, boolean, whole
from modelserver.models.settings.model_defaults import RUNTIMES, ModelDefaults
from modelserver.models.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelserver.models.options.option import Option
    from modelserver.models.options.values import Values

REGISTER = "register parameter"
YAML = "model-config.yaml"
MODELS_KEY = "models= in config.properties"
CONFIG_FILE = "config.properties"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
DEFAULT = "default"
BATCHER_DEFAULT = "batcher default"
SNAPSHOT = "snapshot"

DEFAULT_BATCH_SIZE = 1
DEFAULT_BATCH_DELAY = 100
DEFAULT_MAX_RETRY_TIMEOUT = 300
DEFAULT_SEQUENCE_IDLE_MS = 60_000
SplitInstances = Literal["auto", "true", "false"]
_TEXT, _NUMBER = anything("text"), anything("a whole number", "integer")
_BLOCK = Batcher()
_UNTOUCHED = Settings()
_T = TypeVar("_T")
_Choice = tuple[_T, str]  # a value and its source
_Workers = tuple[int, int]  # fewest and most


class BatchPolicy(str, Enum):
    """When a waiting batch is sent (design 5)."""

    WINDOW = "window"
    GREEDY = "greedy"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration(CommonOptions):
    """The parameters of a registration, None where not given (reference 5.2).

    ``max_batch_size``, ``max_latency`` and ``timeout`` are KServe's names and count as a ``batcher:`` block.
    ``trusted`` is not a parameter: an operator set the url at startup, so it may be outside the model store.
    Nor are ``workflow``, the one that the model is a node of, and ``trace``, the caller's as headers.
    Raises BadRequest for values out of range.
    """

    url: str | None = parameter(
        _TEXT,
        "Archive, folder, script or model file in the model store, or a URL.",
        {"example": "resnet-152.mar"},
    )
    model_name: str | None = parameter(_TEXT, "The model's name; by default the archive's.")
    handler: str | None = parameter(_TEXT, "The handler, such as image_classifier or module:function.")
    runtime: str | None = parameter(_TEXT, "The archive's runtime.", {"enum": [*RUNTIMES]})
    initial_workers: int | None = parameter(
        _NUMBER, "Workers to start; by default default_workers_per_model.", {"example": 1}
    )
    max_batch_size: int | None = parameter(
        whole(1), "The same as batch_size, in the words of KServe's batcher."
    )
    max_latency: int | None = parameter(
        whole(1), "The same as max_batch_delay, in the words of KServe's batcher."
    )
    timeout: int | None = parameter(whole(1), "Seconds until a request that is not answered gets a 504.")
    synchronous: bool | None = parameter(boolean(), "Answer when the workers are ready.", {"default": True})
    s3_sse_kms: bool | None = parameter(
        boolean(),
        "Sign the download of an https URL of S3 with the server's credentials.",
        {"default": False},
    )
    trusted: bool = False
    workflow: str = ""
    trace: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, row in PARAMETERS.items():
            _check(name, self.value_of(name), row.values)
        for option in REQUESTABLE.values():
            name, other = option.name, option.kserve
            one, also = self.value_of(name), self.value_of(other) if other else None
            if one is not None and also is not None and one != also:
                raise BadRequest(f"{name}={one} and {other}={also} are the same setting, give one of them")
        fewest, most = self.min_workers, self.max_workers
        if fewest is not None and most is not None and most < fewest:
            raise BadRequest(f"max_workers={most}: a whole number of at least min_workers={fewest} is needed")

    def value_of(self, name: str) -> Any:
        """A parameter's value, None if it is empty or one of TorchServe's values for "not given"."""
        value = getattr(self, name)
        return None if value == "" or (name in REQUESTABLE and value in REQUESTABLE[name].unset) else value

    @property
    def has_batcher(self) -> bool:
        """Whether one of KServe's parameters was used."""
        return not (self.max_batch_size is None and self.max_latency is None and self.timeout is None)


REQUESTABLE = options_of(Registration)
"""The options that a registration may name, by name."""
PARAMETERS = {
    **{name: option.parameter for name, option in REQUESTABLE.items()},
    **parameters_of(Registration),
}
"""The parameters of a registration by name."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The resolved options. ``max_batch_delay``, the times of ``autoscale`` and the ``_ms`` fields (0:
    unused) are in ms, timeouts in s; ``max_worker_requests`` is unlimited if 0.

    ``worker_threads`` is per process, 0 for a share of the cores. ``request_timeout`` is the server's
    deadline for a request. ``batcher``: a block like KServe's is present. ``device_ids`` is empty if any
    device will do. ``parallel_level`` is the number of devices of a worker, 0 for one; ``processes`` its
    number of processes if started as by torchrun, else 0, with ``rank_threads`` threads each (0: their
    share). ``sources`` says where each option came from; ``warnings`` are lines for the log.

    Options that are simply the first that is set need no field: ``values`` has them by name, and they are
    attributes, too.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    max_batch_delay: int = DEFAULT_BATCH_DELAY
    batch_policy: BatchPolicy = BatchPolicy.ADAPTIVE
    batcher: bool = False
    response_timeout: int = _UNTOUCHED.default_response_timeout
    startup_timeout: int = _UNTOUCHED.default_startup_timeout
    request_timeout: float | None = None
    max_retry_timeout: int = DEFAULT_MAX_RETRY_TIMEOUT
    min_workers: int = 0
    max_workers: int = 0
    autoscale: bool = _UNTOUCHED.autoscale
    autoscale_target_wait: int = _UNTOUCHED.autoscale_target_wait
    autoscale_up_pause: int = _UNTOUCHED.autoscale_up_pause
    autoscale_down_pause: int = _UNTOUCHED.autoscale_down_pause
    max_worker_requests: int = _UNTOUCHED.max_worker_requests
    worker_threads: int = 0
    job_queue_size: int = _UNTOUCHED.job_queue_size
    job_queue_bytes: int = _UNTOUCHED.job_queue_bytes
    split_instances: SplitInstances = _UNTOUCHED.split_instances
    device_type: Literal["cpu", "gpu"] = "cpu"
    device_ids: tuple[int, ...] = ()
    parallel_type: str = ""
    parallel_level: int = 0
    processes: int = 0
    rank_threads: int = 0
    resources: Demand | str = field(default_factory=Demand)
    placement: str = "spread"
    idempotent: bool = False
    use_job_ticket: bool = False
    use_venv: bool = False
    sequence_batching: bool = False
    continuous_batching: bool = False
    async_communication: bool = False
    service_envelope: str = ""
    sequence_max_idle_ms: int = 0
    sequence_timeout_ms: int = 0
    max_num_sequence: int = 1
    max_sequence_job_queue_size: int = 1
    traffic: Mapping[str, Any] | None = None
    signature: Signature = field(default_factory=Signature)
    sources: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=lambda: _DEFAULTS)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "values" and name in self.values:
                return self.values[name]
            raise AttributeError(name)

    def changed(self, values: Mapping[str, Any], source: str) -> ModelOptions:
        """With these options, which come from this source."""
        fields_of = {name: value for name, value in values.items() if name not in self.values}
        others = {**self.values, **{name: value for name, value in values.items() if name in self.values}}
        sources = {**self.sources, **dict.fromkeys(values, source)}
        return replace(self, **fields_of, values=others, sources=sources)


def resolve_options(
    name: str,
    version: str,
    registration: Registration,
    model_config: ModelConfig | None,
    settings: Settings,
    *,
    at_startup: bool,
    device_count: int,
    cpu_count: int,
    setting_sources: Mapping[str, str] | None = None,
) -> ModelOptions:
    """The options of a model version.

    ``device_count`` is the number of GPUs found; ``number_of_gpu`` may reduce it. ``setting_sources`` are
    those of ``LoadedSettings``; without them a setting that differs from its default counts as the file's.
    """
    devices = device_count if settings.number_of_gpu is None else min(device_count, settings.number_of_gpu)
    sources = _Sources(
        registration=registration,
        config=model_config or ModelConfig(),
        fallback=settings.models.get(name, {}).get(version) or ModelDefaults(),
        settings=settings,
        setting_sources=setting_sources,
        at_startup=at_startup,
        devices=devices,
        cpus=cpu_count,
    )
    return _Resolver(sources).resolve()


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where options come from, and warnings about what has no effect, each once."""

    registration: Registration
    config: ModelConfig
    fallback: ModelDefaults
    settings: Settings
    setting_sources: Mapping[str, str] | None
    at_startup: bool
    devices: int
    cpus: int
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def batcher(self) -> _Choice[bool]:
        if self.registration.has_batcher:
            return True, REGISTER
        if self.config.batcher is not None:
            return True, YAML
        return self.setting("enable_batcher") if self.settings.enable_batcher else (False, DEFAULT)

    def ranked(self, option: Option) -> _Choice[Any]:
        """The first source that sets the option."""
        name = option.name
        otherwise = getattr(_UNSET, name), DEFAULT
        return _first(
            (self.registration.value_of(name) if name in REQUESTABLE else None, REGISTER),
            (getattr(self.config, name), YAML),
            (getattr(self.fallback, name, None), MODELS_KEY),
            last=self.setting(option.setting) if option.setting else otherwise,
        )

    def in_block(self, name: str) -> int | None:
        """The value in the yaml's batcher block."""
        block = self.config.batcher
        return getattr(block, name) if block is not None and name in block.fields_set else None

    def unless_block(self, key: str, of_block: _T, otherwise: _Choice[_T]) -> _Choice[_T]:
        """The default of a batcher: the server's, if it has one for all models."""
        if not self.batcher()[0]:
            return otherwise
        if self.settings.enable_batcher:
            value, source = self.setting(key)
            return value, BATCHER_DEFAULT if source == DEFAULT else source
        return of_block, BATCHER_DEFAULT

    def setting(self, key: str) -> _Choice[Any]:
        value = getattr(self.settings, key)
        if self.setting_sources is None:
            return value, DEFAULT if value == getattr(_UNTOUCHED, key) else CONFIG_FILE
        return value, _kind_of_source(self.setting_sources[key])


@dataclass(frozen=True, slots=True)
class _Devices:
    """The options of devices and machines."""

    sources: _Sources

    def device_type(self) -> _Choice[str]:
        if (elsewhere := self.elsewhere()) is not None:
            kind = "gpu" if elsewhere.num_gpus else "cpu"
            return _first((self.sources.config.device_type, YAML), last=(kind, DEFAULT))
        if self.sources.config.device_type == "gpu" and not self.sources.devices:
            self.sources.warn(
                "model-config.yaml: deviceType=gpu: no GPU is available, the model runs on the CPU"
            )
            return "cpu", DEFAULT
        return _first(
            (self.sources.config.device_type, YAML), last=("gpu" if self.sources.devices else "cpu", DEFAULT)
        )

    def device_ids(self) -> _Choice[tuple[int, ...]]:
        """The list, unless it names a missing device (reference 9)."""
        named = self.sources.config.device_ids
        if not named or self.sources.config.device_type == "cpu":
            return (), DEFAULT
        if max(named) < self.sources.devices:
            return named, YAML
        self.sources.warn(
            f"model-config.yaml: deviceIds={list(named)} is ignored: numbers below {self.sources.devices}, "
            "that of the GPUs, are needed"
        )
        return (), DEFAULT

    def torchrun(self) -> Torchrun | None:
        """The block if it applies: as in TorchServe, only with a parallel type."""
        return self.sources.config.torchrun if self.sources.config.parallel_type else None

    def parallel_level(self) -> _Choice[int]:
        torchrun = self.torchrun()
        if torchrun is not None:
            return torchrun.processes, YAML
        if self.sources.config.parallel_type and self.sources.config.parallel_level is not None:
            return self.sources.config.parallel_level, YAML
        if self.sources.config.torchrun is not None:
            self.sources.warn(
                "model-config.yaml: torchrun has no effect without a parallelType (tp, pp, pptp, custom)"
            )
        return 0, DEFAULT

    def processes(self) -> _Choice[int]:
        """The processes of a ``torchrun`` block, or the level of a type that has several."""
        level, source = self.parallel_level()
        if self.torchrun() is not None or (level > 0 and self.sources.config.parallel_type in RANKED):
            return level, source
        return 0, DEFAULT

    def rank_threads(self) -> _Choice[int]:
        torchrun = self.torchrun()
        threads = None if torchrun is None else torchrun.threads
        return (0, DEFAULT) if threads is None else (threads, YAML)

    def resources(self) -> _Choice[Demand | str]:
        """The default of all models was checked at startup."""
        if self.sources.config.resources is not None:
            return self.sources.config.resources, YAML
        value, source = self.sources.setting("worker_resources")
        default = parse_resources(value) if value else _UNSET.resources
        if self.sources.config.device_type == "gpu" and isinstance(default, Demand) and not default.num_gpus:
            level, _ = self.parallel_level()
            return replace(default, num_gpus=float(max(1, level))), YAML
        return default, source

    def placement(self) -> _Choice[str]:
        """The processes of one worker talk with each other; workers do not."""
        if self.sources.config.placement is not None:
            return self.sources.config.placement, YAML
        return ("pack" if self.processes()[0] else _UNSET.placement), DEFAULT

    def elsewhere(self) -> Demand | None:
        """What a worker needs on another machine; None if it runs on this one."""
        resources, _ = self.resources()
        return (
            None
            if self.sources.settings.worker_launcher == "local" or isinstance(resources, str)
            else resources
        )

    def gpus(self) -> int:
        """The number of GPUs that this model may use."""
        if self.sources.config.device_type == "cpu":
            return 0
        named = self.sources.config.device_ids or ()
        return len(named) if named and max(named) < self.sources.devices else self.sources.devices


@dataclass(frozen=True, slots=True)
class _WorkerNumbers:
    """The numbers of workers."""

    sources: _Sources
    devices: _Devices

    def workers(self) -> _Choice[_Workers]:
        """The requested numbers, limited to the groups of GPUs if each worker needs one (reference 18.3)."""
        (fewest, most), source = self.requested_workers()
        level, gpus = self.devices.parallel_level()[0], self.devices.gpus()
        if level < 1 or gpus < level or most <= gpus // level:
            return (fewest, most), source
        possible = gpus // level
        if source != DEFAULT:
            self.sources.warn(
                f"{gpus} GPUs are enough for {possible} workers of {level} each, not for {most}"
            )
        return (min(fewest, possible), possible), source

    def requested_workers(self) -> _Choice[_Workers]:
        if self.sources.ranked(OPTIONS["load"])[0] == ON_DEMAND:
            return self.workers_on_demand()
        default = self.default_workers()
        return _first(
            (self.registered_workers(default[0]), REGISTER),
            (self.yaml_workers(), YAML),
            (self.fallback_workers(default[0]), MODELS_KEY),
            last=((default[0], default[0]), default[1]),
        )

    def workers_on_demand(self) -> _Choice[_Workers]:
        """None to begin with, unless a number is set; then up to 1, unless that is set."""
        for source, origin in ((self.sources.registration, REGISTER), (self.sources.config, YAML)):
            if source.min_workers is not None or source.max_workers is not None:
                fewest = source.min_workers or 0
                return (fewest, max(1, fewest, source.max_workers or 0)), origin
        return (0, 1), DEFAULT

    def default_workers(self) -> _Choice[int]:
        initial = self.sources.registration.initial_workers
        if not self.sources.at_startup and initial is not None:
            return max(0, initial), REGISTER
        configured, source = self.sources.setting("default_workers_per_model")
        if configured or not self.sources.at_startup:
            return configured, source
        # How many devices other machines have is not known.
        return (self.sources.devices or self.sources.cpus) if self.devices.elsewhere() is None else 1, DEFAULT

    def registered_workers(self, default: int) -> _Workers | None:
        fewest, most = self.sources.registration.min_workers, self.sources.registration.max_workers
        if fewest is not None:
            return fewest, fewest if most is None else most
        return None if most is None else (min(default, most), most)

    def yaml_workers(self) -> _Workers | None:
        fewest, most = self.sources.config.min_workers or 0, self.sources.config.max_workers or 0
        if self.sources.config.min_workers == 0:
            self.sources.warn("model-config.yaml: minWorkers=0: 1 is used, as load is not on-demand")
            fewest = 1
        if 0 < fewest <= most:
            return fewest, most
        if self.sources.config.min_workers is not None or self.sources.config.max_workers is not None:
            self.sources.warn(f"Invalid model config in mar, minWorkers:{fewest}, maxWorkers:{most}")
        return None

    def fallback_workers(self, default: int) -> _Workers | None:
        fewest, most = self.sources.fallback.min_workers, self.sources.fallback.max_workers
        if not self.sources.at_startup or (fewest is None and most is None):
            return None
        if fewest is not None and most is not None and most < fewest:
            self.sources.warn(f"models=: minWorkers={fewest} is above maxWorkers={most}, both are ignored")
            return None
        if fewest is None:
            fewest = default if most is None else min(default, most)
        return fewest, max(fewest, default) if most is None else most


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Options that are not simply the first by rank have a method for value and source."""

    sources: _Sources

    def resolve(self) -> ModelOptions:
        devices = _Devices(self.sources)
        workers, workers_source = _WorkerNumbers(self.sources, devices).workers()
        chosen: dict[str, _Choice[Any]] = {
            **{option.name: self.sources.ranked(option) for option in _RANKED_ALIKE},
            "batch_size": self.batch_size(),
            "max_batch_delay": self.max_batch_delay(),
            "batch_policy": self.batch_policy(),
            "batcher": self.sources.batcher(),
            "request_timeout": self.request_timeout(),
            "min_workers": (workers[0], workers_source),
            "max_workers": (workers[1], workers_source),
            "autoscale": self.autoscale(),
            "job_queue_size": _first(
                (self.sources.config.job_queue_size or None, YAML),
                last=self.sources.setting("job_queue_size"),
            ),
            "job_queue_bytes": self.sources.setting("job_queue_bytes"),
            "split_instances": self.split_instances(),
            "service_envelope": self.service_envelope(),
            "device_type": devices.device_type(),
            "device_ids": devices.device_ids(),
            "parallel_level": devices.parallel_level(),
            "processes": devices.processes(),
            "rank_threads": devices.rank_threads(),
            "sequence_max_idle_ms": self.sequence_max_idle(),
            "resources": devices.resources(),
            "placement": devices.placement(),
        }
        others = {option.name: self.sources.ranked(option) for option in _WITHOUT_FIELD}
        return ModelOptions(
            **{option: value for option, (value, _) in chosen.items()},
            sources={option: source for option, (_, source) in (chosen | others).items()},
            warnings=tuple(self.sources.warnings),
            values={option: value for option, (value, _) in others.items()},
        )

    def batch_size(self) -> _Choice[int]:
        return _first(
            (self.sources.registration.value_of("batch_size"), REGISTER),
            (self.sources.registration.max_batch_size, REGISTER),
            (self.sources.in_block("max_batch_size"), YAML),
            (self.sources.config.batch_size, YAML),
            (self.sources.fallback.batch_size, MODELS_KEY),
            last=self.sources.unless_block(
                "batcher_max_batch_size", _BLOCK.max_batch_size, (DEFAULT_BATCH_SIZE, DEFAULT)
            ),
        )

    def max_batch_delay(self) -> _Choice[int]:
        return _first(
            (self.sources.registration.value_of("max_batch_delay"), REGISTER),
            (self.sources.registration.max_latency, REGISTER),
            (self.sources.in_block("max_latency"), YAML),
            (self.sources.config.max_batch_delay or None, YAML),
            (self.sources.fallback.max_batch_delay, MODELS_KEY),
            last=self.sources.unless_block(
                "batcher_max_latency", _BLOCK.max_latency, (DEFAULT_BATCH_DELAY, DEFAULT)
            ),
        )

    def batch_policy(self) -> _Choice[BatchPolicy]:
        requested, source = self.sources.ranked(OPTIONS["batch_policy"])
        if requested is not None:
            return BatchPolicy(requested.lower()), source
        block, block_source = self.sources.batcher()
        _, delay_source = self.max_batch_delay()
        if block:
            return BatchPolicy.WINDOW, block_source
        if delay_source != DEFAULT:
            return BatchPolicy.WINDOW, delay_source
        return BatchPolicy.ADAPTIVE, DEFAULT

    def request_timeout(self) -> _Choice[float | None]:
        client_timeout = self.sources.config.client_timeout_ms
        return _first(
            (self.sources.registration.timeout, REGISTER),
            (self.sources.in_block("timeout"), YAML),
            (client_timeout / 1000 if client_timeout else None, YAML),
            last=self.sources.unless_block("batcher_timeout", _BLOCK.timeout, (None, DEFAULT)),
        )

    def service_envelope(self) -> _Choice[str]:
        name, source = self.sources.ranked(OPTIONS["service_envelope"])
        return "" if name in (None, "none") else name, source

    def split_instances(self) -> _Choice[str]:
        return _first(
            (_as_split(self.sources.registration.split_instances), REGISTER),
            (_as_split(self.sources.config.split_instances), YAML),
            last=self.sources.setting("split_instances"),
        )

    def sequence_max_idle(self) -> _Choice[int]:
        """Sequences always have an idle timeout, or those of clients that left would never end.

        TorchServe answers every request with 500 if none is given (reference 8.9).
        """
        requested: _Choice[int] = self.sources.ranked(OPTIONS["sequence_max_idle_ms"])
        if requested[0] or not self.sources.config.sequence_batching:
            return requested
        self.sources.warn(
            "model-config.yaml: sequenceBatching needs a sequenceMaxIdleMSec of at least 1, "
            f"{DEFAULT_SEQUENCE_IDLE_MS} is used"
        )
        return DEFAULT_SEQUENCE_IDLE_MS, DEFAULT

    def autoscale(self) -> _Choice[bool]:
        """Never with sequences, as their state would be lost with a worker."""
        requested: _Choice[bool] = self.sources.ranked(OPTIONS["autoscale"])
        if not self.sources.config.sequence_batching or not requested[0]:
            return requested
        if requested[1] in {REGISTER, YAML}:
            self.sources.warn("autoscale has no effect on a model with sequenceBatching")
        return False, DEFAULT


_FIELDS = {each.name for each in fields(ModelOptions)}
_RANKED_ALIKE = [option for name, option in OPTIONS.items() if name in _FIELDS]
_WITHOUT_FIELD = [option for name, option in OPTIONS.items() if name not in _FIELDS]
_DEFAULTS: dict[str, Any] = {
    option.name: getattr(_UNTOUCHED, option.setting) if option.setting else option.otherwise
    for option in _WITHOUT_FIELD
}
_UNSET = ModelOptions()


def _first(*candidates: tuple[_T | None, str], last: tuple[_T, str]) -> _Choice[_T]:
    for value, source in candidates:
        if value is not None:
            return value, source
    return last


def _kind_of_source(source: str) -> str:
    if source == DEFAULT:
        return DEFAULT
    if source.startswith("environment "):
        return ENVIRONMENT
    return COMMAND_LINE if source.startswith("flag ") else CONFIG_FILE


def _as_split(value: str | bool | None) -> str | None:
    return None if value is None else str(value).lower() or None


def _check(name: str, value: Any, values: Values) -> None:
    if value is None:
        return
    if values.choices and str(value).lower() not in values.choices:
        raise BadRequest(f"{name}={value}: one of {', '.join(values.choices)} is needed")
    if values.least is not None and value < values.least:
        raise BadRequest(f"{name}={value}: a whole number of at least {values.least} is needed")
    if values.most is not None and value > values.most:
        raise BadRequest(f"{name}: a whole number of at most {values.most} is needed")
