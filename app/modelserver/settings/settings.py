"""All settings of the server as one frozen value, and how it comes about."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from modelserver.errors import ConfigError
from modelserver.settings.address import Address
from modelserver.settings.checks import check
from modelserver.settings.dump import property_text
from modelserver.settings.keys import KEYS, TLS, TORCHSERVE, Key, Kind
from modelserver.settings.remarks import remarks
from modelserver.settings.sources import DEFAULT, Given, find_config_file, gather
from modelserver.settings.values import ModelToLoad, convert

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from modelserver.settings.model_defaults import ModelTable

__all__ = ["Address", "LoadedSettings", "ModelToLoad", "Settings", "explain", "load_settings"]

_INFERENCE = Address("http", "127.0.0.1", 8080)
_MANAGEMENT = Address("http", "127.0.0.1", 8081)
_METRICS = Address("http", "127.0.0.1", 8082)
_ANY_URL = (re.compile("file://.*|http(s)?://.*", re.IGNORECASE),)
_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """A field per key of ``keys.KEYS``, where the meanings stand; None is "not set".

    Paths are absolute when they come from ``load_settings``. ``allowed_urls_given`` is the one field that
    is no key: an operator set ``allowed_urls`` to something else than the default.
    """

    inference_address: Address = _INFERENCE
    management_address: Address = _MANAGEMENT
    metrics_address: Address = _METRICS
    frontend_processes: Literal["auto"] | int = "auto"

    model_store: Path | None = None
    workflow_store: Path | None = None
    load_models: tuple[ModelToLoad, ...] = ()
    models: ModelTable = field(default_factory=dict)
    model_snapshot: str | None = None
    allowed_urls: tuple[re.Pattern[str], ...] = _ANY_URL
    use_env_allowed_urls: bool = False
    install_py_dep_per_model: bool = False

    batch_policy: Literal["adaptive", "greedy", "window"] | None = None
    split_instances: Literal["auto", "true", "false"] = "auto"
    isolate_failures: bool = True
    job_queue_size: int = 100
    job_queue_bytes: int = 512 * 1024 * 1024
    default_workers_per_model: int = 0
    autoscale: bool = False
    autoscale_target_wait: int = 100
    autoscale_up_pause: int = 2000
    autoscale_down_pause: int = 60_000
    max_worker_memory: int = 0
    max_worker_requests: int = 0
    initial_worker_port: int = 9000
    worker_start: Literal["auto", "spawn"] = "auto"

    enable_batcher: bool = False
    batcher_max_batch_size: int = 32
    batcher_max_latency: int = 500
    batcher_timeout: int = 60

    default_response_timeout: int = 120
    default_startup_timeout: int = 120
    unregister_model_timeout: int = 120
    silence_timeout: float = 30.0
    drain_timeout: float = 30.0
    max_request_size: int = 6553500
    max_incoming_bytes: int = 512 * 1024 * 1024
    max_request_instances: int = 10_000
    max_request_tensors: int = 4096
    max_response_size: int = 6553500

    expose_errors: Literal["auto", "true", "false"] = "auto"
    decode_input_request: bool = True
    default_service_handler: str | None = None
    service_envelope: Literal["body", "json", "kserve", "kservev2"] | None = None
    limit_max_image_pixels: bool = True
    blacklist_env_vars: re.Pattern[str] | None = None
    python: str | None = None
    ts_open_inference_protocol: bool = True
    ts_header_key_sequence_id: str = "ts_request_sequence_id"
    ts_header_key_sequence_start: str = "ts_request_sequence_start"
    ts_header_key_sequence_end: str = "ts_request_sequence_end"

    disable_token_authorization: bool = False
    token_authorization: Literal["auto", "always"] = "auto"  # noqa: S105 - it says when
    token_file: Path | None = None
    token_expiration_min: float | None = None
    ping_token: bool = False
    enable_model_api: bool = True
    cors_allowed_origin: str | None = None
    cors_allowed_methods: str | None = None
    cors_allowed_headers: str | None = None

    enable_metrics_api: bool = True
    metrics_mode: Literal["log", "prometheus", "legacy"] = "prometheus"
    metrics_config: Path | None = None
    model_metrics_auto_detect: bool = False
    disable_system_metrics: bool = False
    system_metrics_cmd: str | None = None
    metric_time_interval: int = 60

    log_format: Literal["text", "json"] = "text"
    async_logging: bool = False

    payload_log_url: str | None = None
    payload_log_mode: Literal["all", "request", "response"] = "all"
    payload_log_source: str | None = None
    payload_log_inference_service: str | None = None
    payload_log_namespace: str | None = None
    payload_log_endpoint: str | None = None
    payload_log_component: str | None = None
    payload_log_headers: str | None = None
    payload_log_annotations: str | None = None
    payload_log_ca_file: Path | None = None
    payload_log_skip_verify: bool = False
    payload_log_queue_size: int = 100
    payload_log_queue_bytes: int = 64 * 1024 * 1024
    payload_log_max_body: int = 6553500
    payload_log_timeout: float = 10.0
    payload_log_drain_timeout: float = 2.0
    payload_log_connections: int = 5

    private_key_file: Path | None = None
    certificate_file: Path | None = None
    keystore: Path | None = None
    keystore_pass: str = field(default="changeit", repr=False)
    keystore_type: str = "PKCS12"
    tls_client_ca_file: Path | None = None

    enable_grpc_api: bool = True
    grpc_inference_address: str = "127.0.0.1"
    grpc_management_address: str = "127.0.0.1"
    grpc_inference_port: int = 7070
    grpc_management_port: int = 7071
    enable_grpc_ssl: bool = False
    grpc_inference_max_connection_age_ms: int | None = None
    grpc_inference_max_connection_age_grace_ms: int | None = None
    grpc_management_max_connection_age_ms: int | None = None
    grpc_management_max_connection_age_grace_ms: int | None = None

    compat_defaults: Literal["modelserver", "torchserve"] = "modelserver"
    enable_envvars_config: bool = False

    number_of_gpu: int | None = None
    ipex_enable: bool = False
    ipex_gpu_enable: bool = False
    cpu_launcher_enable: bool = False
    cpu_launcher_args: str | None = None
    initial_distribution_port: int = 29500

    debug: bool = False
    number_of_netty_threads: int = 0
    netty_client_threads: int = 0
    use_native_io: bool = True
    io_ratio: int = 50
    prefer_direct_buffer: bool = False
    vmargs: str | None = None
    plugins_path: Path | None = None
    cpp_log_config: Path | None = None
    model_server_home: Path | None = None
    version: str | None = None

    allowed_urls_given: bool = False

    @property
    def as_torchserve(self) -> bool:
        """TorchServe's defaults count, and its rules where no key says otherwise."""
        return self.compat_defaults == TORCHSERVE

    @property
    def shows_errors(self) -> bool:
        """Clients are told what went wrong in a handler: by ``auto`` those of this machine alone."""
        if self.expose_errors != "auto":
            return self.expose_errors == "true"
        grpc = Address("http", self.grpc_inference_address, self.grpc_inference_port)
        return self.inference_address.is_loopback and (not self.enable_grpc_api or grpc.is_loopback)

    @property
    def uses_tls(self) -> bool:
        """Whether an address is https."""
        addresses = (self.inference_address, self.management_address, self.metrics_address)
        grpc = self.enable_grpc_api and self.enable_grpc_ssl
        return grpc or any(address.scheme == "https" for address in addresses)

    @property
    def load_all(self) -> bool:
        """``load_models`` is the one word ``all``: everything in the model store (reference 2.3)."""
        return [(item.name, item.url.lower()) for item in self.load_models] == [(None, "all")]


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and where they came from.

    ``sources`` says for every key ``default``, the path of the file, ``flag --x`` or ``environment TS_X``;
    ``warnings`` are single lines for the log.
    """

    settings: Settings
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    config_file: Path | None


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], cwd: Path) -> LoadedSettings:
    """Settings from flags (by key name; None and False are "not given"), environment and config.properties.

    Flags that are no settings, ``ts_config`` apart, are passed over. Relative paths are taken from ``cwd``.

    Raises ConfigError with one line that names the key, its value and what is allowed.
    """
    config_file = find_config_file(flags, environ, cwd)
    given = gather(flags, environ, config_file)
    values, unusable = _values(given, cwd)
    settings = _compose({**_other_defaults(values.get("compat_defaults"), cwd), **values})
    for name, problem in unusable.items():
        if _has_effect(KEYS[name], settings):
            raise problem
    try:
        check(settings)
    except ConfigError as error:
        raise ConfigError(" ".join(str(error).splitlines())) from error
    ignored = {name: str(problem) for name, problem in unusable.items()}
    return LoadedSettings(
        settings,
        {name: given[name].source if name in given else DEFAULT for name in KEYS},
        tuple(remarks(given, values, _DEFAULTS, ignored)),
        config_file,
    )


def _values(given: Mapping[str, Given], cwd: Path) -> tuple[dict[str, object], dict[str, ConfigError]]:
    """The values of the known keys, and what is wrong with those that have none."""
    values: dict[str, object] = {}
    unusable: dict[str, ConfigError] = {}
    for name, item in given.items():
        if name in KEYS:
            try:
                values[name] = _value(KEYS[name], item, cwd)
            except ConfigError as error:
                unusable[name] = error
    return values, unusable


def _has_effect(key: Key, settings: Settings) -> bool:
    """What changes nothing must not stop the start: keys of the Java server, of TLS where there is none."""
    return key.category != "N" and (key.group != TLS or settings.uses_tls)


def explain(loaded: LoadedSettings) -> str:
    """A line ``key = value (source)`` per setting, secrets masked."""
    lines = [f"config file: {loaded.config_file or 'none'}"]
    lines += [
        f"{name} = {_shown(key, getattr(loaded.settings, name))} ({_source(loaded, key)})"
        for name, key in KEYS.items()
    ]
    return "\n".join(lines)


def _source(loaded: LoadedSettings, key: Key) -> str:
    source = loaded.sources[key.name]
    theirs = source == DEFAULT and loaded.settings.as_torchserve and key.torchserve is not None
    return "default of TorchServe" if theirs else source


def _value(key: Key, given: Given, cwd: Path) -> object:
    try:
        return convert(key, given.text, cwd)
    except ValueError as error:
        if given.is_flag and key.kind is Kind.DIRECTORY:
            raise ConfigError(f"{key.flag} directory not found: {_one_line(given.text)}") from None
        reason = _one_line(str(error)) + (f" ({given.source}, line {given.line})" if given.line else "")
        raise ConfigError(f"Invalid configuration: {key.name}={_shown(key, given.text)}: {reason}") from None


def _other_defaults(defaults: object, cwd: Path) -> dict[str, object]:
    """The values of keys whose default is not that of ``Settings``."""
    if defaults != TORCHSERVE:
        return {}
    theirs = {name: key.torchserve for name, key in KEYS.items() if key.torchserve is not None}
    return {name: convert(KEYS[name], text, cwd) for name, text in theirs.items()}


def _compose(values: Mapping[str, object]) -> Settings:
    chosen = {**values, "allowed_urls_given": values.get("allowed_urls", _ANY_URL) != _ANY_URL}
    if chosen.get("workflow_store") is None:
        chosen["workflow_store"] = chosen.get("model_store")
    return Settings(**cast("dict[str, Any]", chosen))


def _shown(key: Key, value: object) -> str:
    if key.secret:
        return "********"
    return _one_line(property_text(value))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SHOWN else line[: _LONGEST_SHOWN - 1] + "…"


_DEFAULTS = {spec.name: getattr(Settings(), spec.name) for spec in fields(Settings)}
