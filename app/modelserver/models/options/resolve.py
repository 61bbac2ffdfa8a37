"""Resolves a version's options from registration, model-config.yaml, ``models=`` and settings.

Each option is the first one given in the order of reference 8.5 and 8.6, except that a yaml without a timeout
does not hide other sources. The batch policy follows the design's section 9: a given policy wins, a given
delay means window, otherwise it is adaptive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from modelserver.engine.demand import Demand
from modelserver.engine.policy_names import ADAPTIVE, WINDOW
from modelserver.errors import BadRequest
from modelserver.models.options.option import Option, options_of, parameter, parameters_of
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
from modelserver.models.options.values import Values, anything, boolean, parse_resources, whole
from modelserver.models.settings.model_defaults import RUNTIMES, ModelDefaults
from modelserver.models.settings.settings import Settings

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

    Options that are simply the first that is set need no field: ``values`` has them by name, and
    ``getattr`` returns them, too.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    max_batch_delay: int = DEFAULT_BATCH_DELAY
    batch_policy: str = ADAPTIVE
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

    def by_request(self, name: str) -> bool:
        """Whether a registration or a change has set it, of this server or of one before it."""
        return self.sources.get(name) in {REGISTER, SNAPSHOT}

    def restored(self) -> ModelOptions:
        """With a snapshot as the source of what its registration sets."""
        sources = {name: SNAPSHOT if each == REGISTER else each for name, each in self.sources.items()}
        return replace(self, sources=sources)

    def changed(self, values: Mapping[str, Any], source: str) -> ModelOptions:
        """With these options, which come from this source."""
        fields_of = {name: value for name, value in values.items() if name not in self.values}
        others = {**self.values, **{name: value for name, value in values.items() if name in self.values}}
        sources = {**self.sources, **dict.fromkeys(values, source)}
        return replace(self, **fields_of, values=others, sources=sources)


class OptionResolver:
    """Where the options of a model version come from, and warnings about what has no effect, each once.

    Options that are not simply the first by rank have a method of their name for value and source.

    Args:
        sources: those of the settings, as in ``LoadedSettings``.
        devices: the number of GPUs found; ``number_of_gpu`` may reduce it.
    """

    def __init__(
        self,
        name: str,
        version: str,
        registration: Registration,
        config: ModelConfig | None,
        settings: Settings,
        *,
        sources: Mapping[str, str],
        at_startup: bool,
        devices: int,
        cpus: int,
    ) -> None:
        self.registration = registration
        self.config = config or ModelConfig()
        self.fallback = settings.models.get(name, {}).get(version) or ModelDefaults()
        self.settings = settings
        self.sources = sources
        self.at_startup = at_startup
        self.devices = devices if settings.number_of_gpu is None else min(devices, settings.number_of_gpu)
        self.cpus = cpus
        self.warnings: list[str] = []

    def resolve(self) -> ModelOptions:
        (fewest, most), source = self._workers()
        chosen: dict[str, _Choice[Any]] = {
            **{option.name: self._ranked(option) for option in _RANKED_ALIKE},
            "min_workers": (fewest, source),
            "max_workers": (most, source),
            "job_queue_bytes": self._setting("job_queue_bytes"),
            **{name: getattr(self, f"_{name}")() for name in _WITH_METHOD},
        }
        others = {option.name: self._ranked(option) for option in _WITHOUT_FIELD}
        return ModelOptions(
            **{option: value for option, (value, _) in chosen.items()},
            sources={option: source for option, (_, source) in (chosen | others).items()},
            warnings=tuple(self.warnings),
            values={option: value for option, (value, _) in others.items()},
        )

    def _batch_size(self) -> _Choice[int]:
        return self._of_batches("batch_size", "max_batch_size", DEFAULT_BATCH_SIZE)

    def _max_batch_delay(self) -> _Choice[int]:
        return self._of_batches("max_batch_delay", "max_latency", DEFAULT_BATCH_DELAY)

    def _of_batches(self, name: str, kserve: str, default: int) -> _Choice[int]:
        """An option that KServe's batcher has too, by another name; 0 in the file counts as not set."""
        return _first(
            (self.registration.value_of(name), REGISTER),
            (getattr(self.registration, kserve), REGISTER),
            (self._in_block(kserve), YAML),
            (getattr(self.config, name) or None, YAML),
            (getattr(self.fallback, name), MODELS_KEY),
            last=self._unless_block(kserve, (default, DEFAULT)),
        )

    def _batch_policy(self) -> _Choice[str]:
        requested, source = self._ranked(OPTIONS["batch_policy"])
        if requested is not None:
            return requested.lower(), source
        block, block_source = self._batcher()
        _, delay_source = self._max_batch_delay()
        if block:
            return WINDOW, block_source
        if delay_source != DEFAULT:
            return WINDOW, delay_source
        return ADAPTIVE, DEFAULT

    def _request_timeout(self) -> _Choice[float | None]:
        client_timeout = self.config.client_timeout_ms
        return _first(
            (self.registration.timeout, REGISTER),
            (self._in_block("timeout"), YAML),
            (client_timeout / 1000 if client_timeout else None, YAML),
            last=self._unless_block("timeout", (None, DEFAULT)),
        )

    def _service_envelope(self) -> _Choice[str]:
        name, source = self._ranked(OPTIONS["service_envelope"])
        return "" if name in (None, "none") else name, source

    def _job_queue_size(self) -> _Choice[int]:
        return _first((self.config.job_queue_size or None, YAML), last=self._setting("job_queue_size"))

    def _split_instances(self) -> _Choice[str]:
        return _first(
            (_as_split(self.registration.split_instances), REGISTER),
            (_as_split(self.config.split_instances), YAML),
            last=self._setting("split_instances"),
        )

    def _sequence_max_idle_ms(self) -> _Choice[int]:
        """Sequences always have an idle timeout, or those of clients that left would never end.

        TorchServe answers every request with 500 if none is given (reference 8.9).
        """
        requested: _Choice[int] = self._ranked(OPTIONS["sequence_max_idle_ms"])
        if requested[0] or not self.config.sequence_batching:
            return requested
        self._warn(
            "model-config.yaml: sequenceBatching needs a sequenceMaxIdleMSec of at least 1, "
            f"{DEFAULT_SEQUENCE_IDLE_MS} is used"
        )
        return DEFAULT_SEQUENCE_IDLE_MS, DEFAULT

    def _autoscale(self) -> _Choice[bool]:
        """Never with sequences, as their state would be lost with a worker."""
        requested: _Choice[bool] = self._ranked(OPTIONS["autoscale"])
        if not self.config.sequence_batching or not requested[0]:
            return requested
        if requested[1] in {REGISTER, YAML}:
            self._warn("autoscale has no effect on a model with sequenceBatching")
        return False, DEFAULT

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _batcher(self) -> _Choice[bool]:
        if self.registration.has_batcher:
            return True, REGISTER
        if self.config.batcher is not None:
            return True, YAML
        return self._setting("enable_batcher") if self.settings.enable_batcher else (False, DEFAULT)

    def _ranked(self, option: Option) -> _Choice[Any]:
        """The first source that sets the option."""
        name = option.name
        otherwise = getattr(_UNSET, name), DEFAULT
        return _first(
            (self.registration.value_of(name) if name in REQUESTABLE else None, REGISTER),
            (getattr(self.config, name), YAML),
            (getattr(self.fallback, name, None), MODELS_KEY),
            last=self._setting(option.setting) if option.setting else otherwise,
        )

    def _in_block(self, name: str) -> int | None:
        """The value in the yaml's batcher block."""
        block = self.config.batcher
        return getattr(block, name) if block is not None and name in block.fields_set else None

    def _unless_block(self, name: str, otherwise: _Choice[_T]) -> _Choice[_T]:
        """The default of a batcher: the server's, if it has one for all models."""
        if not self._batcher()[0]:
            return otherwise
        if self.settings.enable_batcher:
            value, source = self._setting(f"batcher_{name}")
            return value, BATCHER_DEFAULT if source == DEFAULT else source
        return getattr(_BLOCK, name), BATCHER_DEFAULT

    def _setting(self, key: str) -> _Choice[Any]:
        return getattr(self.settings, key), _kind_of_source(self.sources[key])

    def _device_type(self) -> _Choice[str]:
        if (elsewhere := self._elsewhere()) is not None:
            kind = "gpu" if elsewhere.num_gpus else "cpu"
            return _first((self.config.device_type, YAML), last=(kind, DEFAULT))
        if self.config.device_type == "gpu" and not self.devices:
            self._warn("model-config.yaml: deviceType=gpu: no GPU is available, the model runs on the CPU")
            return "cpu", DEFAULT
        return _first((self.config.device_type, YAML), last=("gpu" if self.devices else "cpu", DEFAULT))

    def _device_ids(self) -> _Choice[tuple[int, ...]]:
        """The list, unless it names a missing device (reference 9)."""
        named = self.config.device_ids
        if not named or self.config.device_type == "cpu":
            return (), DEFAULT
        if max(named) < self.devices:
            return named, YAML
        self._warn(
            f"model-config.yaml: deviceIds={list(named)} is ignored: numbers below {self.devices}, "
            "that of the GPUs, are needed"
        )
        return (), DEFAULT

    def _torchrun(self) -> Torchrun | None:
        """The block if it applies: as in TorchServe, only with a parallel type."""
        return self.config.torchrun if self.config.parallel_type else None

    def _parallel_level(self) -> _Choice[int]:
        if (torchrun := self._torchrun()) is not None:
            return torchrun.processes, YAML
        if self.config.parallel_type and self.config.parallel_level is not None:
            return self.config.parallel_level, YAML
        if self.config.torchrun is not None:
            self._warn(
                "model-config.yaml: torchrun has no effect without a parallelType (tp, pp, pptp, custom)"
            )
        return 0, DEFAULT

    def _processes(self) -> _Choice[int]:
        """The processes of a ``torchrun`` block, or the level of a type that has several."""
        level, source = self._parallel_level()
        if self._torchrun() is not None or (level > 0 and self.config.parallel_type in RANKED):
            return level, source
        return 0, DEFAULT

    def _rank_threads(self) -> _Choice[int]:
        torchrun = self._torchrun()
        threads = None if torchrun is None else torchrun.threads
        return (0, DEFAULT) if threads is None else (threads, YAML)

    def _resources(self) -> _Choice[Demand | str]:
        """The default of all models was checked at startup."""
        if self.config.resources is not None:
            return self.config.resources, YAML
        value, source = self._setting("worker_resources")
        default = parse_resources(value) if value else _UNSET.resources
        if self.config.device_type == "gpu" and isinstance(default, Demand) and not default.num_gpus:
            level, _ = self._parallel_level()
            return replace(default, num_gpus=float(max(1, level))), YAML
        return default, source

    def _placement(self) -> _Choice[str]:
        """The processes of one worker talk with each other; workers do not."""
        if self.config.placement is not None:
            return self.config.placement, YAML
        return ("pack" if self._processes()[0] else _UNSET.placement), DEFAULT

    def _elsewhere(self) -> Demand | None:
        """What a worker needs on another machine; None if it runs on this one."""
        resources, _ = self._resources()
        return None if self.settings.worker_launcher == "local" or isinstance(resources, str) else resources

    def _gpus(self) -> int:
        """The number of GPUs that this model may use."""
        if self.config.device_type == "cpu":
            return 0
        named = self.config.device_ids or ()
        return len(named) if named and max(named) < self.devices else self.devices

    def _workers(self) -> _Choice[_Workers]:
        """The requested numbers, limited to the groups of GPUs if each worker needs one (reference 18.3)."""
        (fewest, most), source = self._requested_workers()
        level, gpus = self._parallel_level()[0], self._gpus()
        if level < 1 or gpus < level or most <= gpus // level:
            return (fewest, most), source
        possible = gpus // level
        if source != DEFAULT:
            self._warn(f"{gpus} GPUs are enough for {possible} workers of {level} each, not for {most}")
        return (min(fewest, possible), possible), source

    def _requested_workers(self) -> _Choice[_Workers]:
        if self._ranked(OPTIONS["load"])[0] == ON_DEMAND:
            return self._workers_on_demand()
        default = self._default_workers()
        return _first(
            (self._registered_workers(default[0]), REGISTER),
            (self._yaml_workers(), YAML),
            (self._fallback_workers(default[0]), MODELS_KEY),
            last=((default[0], default[0]), default[1]),
        )

    def _workers_on_demand(self) -> _Choice[_Workers]:
        """None to begin with, unless a number is set; then up to 1, unless that is set."""
        ranked: dict[str, Any] = {REGISTER: self.registration, YAML: self.config, MODELS_KEY: self.fallback}
        for source, each in ranked.items():
            fewest, most = each.min_workers, each.max_workers
            if fewest is not None or most is not None:
                return (fewest or 0, max(1, fewest or 0, most or 0)), source
        return (0, 1), DEFAULT

    def _default_workers(self) -> _Choice[int]:
        initial = self.registration.initial_workers
        if not self.at_startup and initial is not None:
            return max(0, initial), REGISTER
        configured, source = self._setting("default_workers_per_model")
        if configured or not self.at_startup:
            return configured, source
        # How many devices other machines have is not known.
        return (self.devices or self.cpus) if self._elsewhere() is None else 1, DEFAULT

    def _registered_workers(self, default: int) -> _Workers | None:
        fewest, most = self.registration.min_workers, self.registration.max_workers
        if fewest is not None:
            return fewest, fewest if most is None else most
        return None if most is None else (min(default, most), most)

    def _yaml_workers(self) -> _Workers | None:
        fewest, most = self.config.min_workers or 0, self.config.max_workers or 0
        if self.config.min_workers == 0:
            fewest = 1
        if 0 < fewest <= most:
            return fewest, most
        if self.config.min_workers is not None or self.config.max_workers is not None:
            self._warn(f"Invalid model config in mar, minWorkers:{fewest}, maxWorkers:{most}")
        return None

    def _fallback_workers(self, default: int) -> _Workers | None:
        fewest, most = self.fallback.min_workers, self.fallback.max_workers
        if not self.at_startup or (fewest is None and most is None):
            return None
        if fewest is not None and most is not None and most < fewest:
            self._warn(f"models=: minWorkers={fewest} is above maxWorkers={most}, both are ignored")
            return None
        if fewest is None:
            fewest = default if most is None else min(default, most)
        return fewest, max(fewest, default) if most is None else most


_FIELDS = [each.name for each in fields(ModelOptions)]
_RANKED_ALIKE = [option for name, option in OPTIONS.items() if name in _FIELDS]
_WITH_METHOD = [name for name in _FIELDS if hasattr(OptionResolver, f"_{name}")]
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
