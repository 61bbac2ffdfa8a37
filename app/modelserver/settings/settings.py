"""All settings of the server as one frozen value, and how it comes about."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from modelserver.settings.address import Address
from modelserver.settings.keys import TORCHSERVE
from modelserver.settings.values import ModelToLoad

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.settings.model_defaults import ModelTable


__all__ = ["Address", "ModelToLoad", "Settings"]

_INFERENCE = Address("http", "127.0.0.1", 8080)
_MANAGEMENT = Address("http", "127.0.0.1", 8081)
_METRICS = Address("http", "127.0.0.1", 8082)
ANY_URL = (re.compile("file://.*|http(s)?://.*", re.IGNORECASE),)


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
    allowed_urls: tuple[re.Pattern[str], ...] = ANY_URL
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
