"""All settings of the server as one frozen value, a row each (reference 3.3, and the server's own)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelserver.settings.address import Address
from modelserver.settings.key import (
    ACCESS,
    DEVICES,
    ENVIRONMENT,
    GRPC,
    JAVA,
    LOGS,
    METRICS,
    PAYLOADS,
    TLS,
    TORCHSERVE,
    Kind,
    setting,
)
from modelserver.settings.serving import ServingSettings

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings(ServingSettings):
    """A field per key of config.properties, None where it is "not set".

    Paths are absolute when they come from ``load_settings``. ``allowed_urls_given`` is the one field that
    is no key: an operator set ``allowed_urls`` to something else than the default.
    """

    disable_token_authorization: bool = setting(
        False, ACCESS, "Serve without tokens, off loopback too.", flag="--disable-token-auth"
    )
    token_authorization: Literal["auto", "always"] = setting(
        "auto",
        ACCESS,
        "When tokens are asked for; auto: if an address is not loopback, or tokens are given.",
        torchserve="always",
    )
    token_file: Path | None = setting(
        None,
        ACCESS,
        "A file or folder of tokens that you give, such as a mounted secret; it may change while serving.",
    )
    token_expiration_min: float | None = setting(
        None,
        ACCESS,
        "Minutes that a token made by the server is good for; empty or 0: until the server ends.",
        variable="TS_TOKEN_EXPIRATION_TIME_MIN",
        minimum=0,
        torchserve="60",
    )
    ping_token: bool = setting(
        False, ACCESS, "Ask for the inference token at /ping too, as TorchServe does.", torchserve="true"
    )
    enable_model_api: bool = setting(
        True,
        ACCESS,
        "Allow models to be registered and unregistered over the API.",
        flag="--enable-model-api",
        torchserve="false",
    )
    cors_allowed_origin: str | None = setting(
        None, ACCESS, "The Access-Control-Allow-Origin header of every response."
    )
    cors_allowed_methods: str | None = setting(
        None, ACCESS, "The Access-Control-Allow-Methods header of every response."
    )
    cors_allowed_headers: str | None = setting(
        None, ACCESS, "The Access-Control-Allow-Headers header of every response."
    )

    enable_metrics_api: bool = setting(True, METRICS, "Serve metrics at metrics_address.")
    metrics_mode: Literal["log", "prometheus", "legacy"] = setting(
        "prometheus", METRICS, "Where metrics go.", torchserve="log"
    )
    metrics_config: Path | None = setting(
        None, METRICS, "A metrics.yaml that lists the metrics there are; without it, all."
    )
    model_metrics_auto_detect: bool = setting(
        False, METRICS, "Accept handlers' metrics that metrics_config does not list."
    )
    disable_system_metrics: bool = setting(False, METRICS, "Collect no metrics of CPU, memory, disk and GPU.")
    system_metrics_cmd: str | None = setting(
        None,
        METRICS,
        "A collector of system metrics of your own: a Python script and its arguments.",
        variable=None,
    )
    metric_time_interval: int = setting(
        60, METRICS, "Seconds between two readings of system metrics.", variable=None, minimum=1
    )

    log_format: Literal["text", "json"] = setting(
        "text", LOGS, "How the lines of the log files and of the console are written."
    )
    async_logging: bool = setting(
        False, LOGS, "Let a thread of its own write the logs, so that a slow disk does not hold requests up."
    )

    payload_log_url: str | None = setting(
        None,
        PAYLOADS,
        "Where requests and answers are sent as CloudEvents, http or https; empty: nowhere.",
        variable="MODELSERVER_LOG_URL",
        flag="--log-url",
    )
    payload_log_mode: Literal["all", "request", "response"] = setting(
        "all", PAYLOADS, "Which of them are sent.", variable="MODELSERVER_LOG_MODE", flag="--log-mode"
    )
    payload_log_source: str | None = setting(
        None,
        PAYLOADS,
        "The source that events name; the host's (the pod's) name unless given.",
        variable="MODELSERVER_SOURCE_URI",
        flag="--source-uri",
    )
    payload_log_inference_service: str | None = setting(
        None,
        PAYLOADS,
        "The InferenceService that events name.",
        variable="MODELSERVER_INFERENCE_SERVICE",
        flag="--inference-service",
    )
    payload_log_namespace: str | None = setting(
        None,
        PAYLOADS,
        "The namespace that events name.",
        variable="MODELSERVER_NAMESPACE",
        flag="--namespace",
    )
    payload_log_endpoint: str | None = setting(
        None, PAYLOADS, "The endpoint that events name.", variable="MODELSERVER_ENDPOINT", flag="--endpoint"
    )
    payload_log_component: str | None = setting(
        None,
        PAYLOADS,
        "The component (predictor, transformer or explainer) that events name.",
        variable="MODELSERVER_COMPONENT",
        flag="--component",
    )
    payload_log_headers: str | None = setting(
        None,
        PAYLOADS,
        "Request headers whose values events tell, separated by commas; none that hold credentials.",
        variable="MODELSERVER_METADATA_HEADERS",
        flag="--metadata-headers",
    )
    payload_log_annotations: str | None = setting(
        None,
        PAYLOADS,
        "Annotations that events tell, name=value items separated by commas.",
        variable="MODELSERVER_METADATA_ANNOTATIONS",
        flag="--metadata-annotations",
    )
    payload_log_ca_file: Path | None = setting(
        None,
        PAYLOADS,
        "Authorities, PEM, of an https sink; the system's unless given.",
        kind=Kind.FILE,
        variable="MODELSERVER_LOGGER_CA_CERT_FILE",
        flag="--logger-ca-cert-file",
    )
    payload_log_skip_verify: bool = setting(
        False,
        PAYLOADS,
        "Send to an https sink whoever it is.",
        variable="MODELSERVER_LOGGER_TLS_SKIP_VERIFY",
        flag="--logger-tls-skip-verify",
    )
    payload_log_queue_size: int = setting(
        100, PAYLOADS, "Events that may wait for the sink; further ones are dropped and counted.", minimum=1
    )
    payload_log_queue_bytes: int = setting(64 * 1024 * 1024, PAYLOADS, "Bytes of their bodies.", minimum=1)
    payload_log_max_body: int = setting(
        6553500,
        PAYLOADS,
        "Bytes of the largest body that is sent; larger ones are dropped and counted.",
        minimum=0,
    )
    payload_log_timeout: float = setting(10.0, PAYLOADS, "Seconds to wait for the sink.", minimum=0.1)
    payload_log_drain_timeout: float = setting(
        2.0,
        PAYLOADS,
        "Seconds that the end of the server waits for events that are still to be sent.",
        minimum=0,
    )
    payload_log_connections: int = setting(
        5, PAYLOADS, "Events that are sent at the same time.", minimum=1, maximum=64
    )

    private_key_file: Path | None = setting(
        None, TLS, "The private key of https addresses, PEM.", kind=Kind.FILE
    )
    certificate_file: Path | None = setting(
        None, TLS, "The certificate chain of https addresses, PEM.", kind=Kind.FILE
    )
    keystore: Path | None = setting(
        None, TLS, "A PKCS12 file with key and certificate, instead of the two PEM files.", kind=Kind.FILE
    )
    keystore_pass: str = setting("changeit", TLS, "The password of the keystore.", secret=True)
    keystore_type: str = setting("PKCS12", TLS, "The format of the keystore: only PKCS12 can be read.")
    tls_client_ca_file: Path | None = setting(
        None,
        TLS,
        "Authorities, PEM: clients of https addresses must show a certificate of one of them.",
        kind=Kind.FILE,
    )

    enable_grpc_api: bool = setting(True, GRPC, "Serve gRPC; false: its two ports are not bound.")
    grpc_inference_address: str = setting("127.0.0.1", GRPC, "The host that gRPC inference binds.")
    grpc_management_address: str = setting("127.0.0.1", GRPC, "The host that gRPC management binds.")
    grpc_inference_port: int = setting(7070, GRPC, "The port of gRPC inference.", minimum=0, maximum=65535)
    grpc_management_port: int = setting(7071, GRPC, "The port of gRPC management.", minimum=0, maximum=65535)
    enable_grpc_ssl: bool = setting(False, GRPC, "Serve gRPC over TLS.")
    grpc_inference_max_connection_age_ms: int | None = setting(
        None,
        GRPC,
        "Milliseconds of life of a gRPC inference connection; without limit unless given.",
        minimum=1,
    )
    grpc_inference_max_connection_age_grace_ms: int | None = setting(
        None,
        GRPC,
        "Milliseconds left to the calls of an aged gRPC inference connection; without limit unless given.",
        minimum=1,
    )
    grpc_management_max_connection_age_ms: int | None = setting(
        None,
        GRPC,
        "Milliseconds of life of a gRPC management connection; without limit unless given.",
        minimum=1,
    )
    grpc_management_max_connection_age_grace_ms: int | None = setting(
        None,
        GRPC,
        "Milliseconds left to the calls of an aged gRPC management connection; without limit unless given.",
        minimum=1,
    )

    compat_defaults: Literal["modelserver", "torchserve"] = setting(
        "modelserver",
        ENVIRONMENT,
        "Whose defaults count for what nobody sets; TS_COMPAT_DEFAULTS is always read.",
        flag="--compat-defaults",
    )
    enable_envvars_config: bool = setting(
        False, ENVIRONMENT, "Let TS_* environment variables override this file and the flags.", variable=None
    )

    number_of_gpu: int | None = setting(
        None, DEVICES, "The most GPUs to use; all unless given.", category="D", minimum=0
    )
    ipex_enable: bool = setting(False, DEVICES, "Use Intel's extension for PyTorch.", category="D")
    ipex_gpu_enable: bool = setting(False, DEVICES, "Use Intel's extension on GPUs.", category="D")
    cpu_launcher_enable: bool = setting(
        False, DEVICES, "Start workers with PyTorch's CPU launcher.", category="D"
    )
    cpu_launcher_args: str | None = setting(None, DEVICES, "Arguments of the CPU launcher.", category="D")
    initial_distribution_port: int = setting(
        29500,
        DEVICES,
        "The first port that the processes of one worker meet at, of 1000; 0: any that is free.",
        category="D",
        minimum=0,
        maximum=65535,
    )

    debug: bool = setting(False, JAVA, "Connect to a worker that runs already.", category="N")
    number_of_netty_threads: int = setting(0, JAVA, "Threads of the front end.", category="N")
    netty_client_threads: int = setting(0, JAVA, "Threads that talk to workers.", category="N")
    use_native_io: bool = setting(True, JAVA, "Native transports.", category="N", variable=None)
    io_ratio: int = setting(50, JAVA, "The share of I/O in a thread.", category="N", variable=None)
    prefer_direct_buffer: bool = setting(False, JAVA, "Direct buffers.", category="N")
    vmargs: str | None = setting(None, JAVA, "Arguments of the Java machine.", category="N", variable=None)
    plugins_path: Path | None = setting(
        None, JAVA, "A folder of Java plugins.", category="N", variable=None, flag="--plugins-path"
    )
    cpp_log_config: Path | None = setting(
        None, JAVA, "Logging of the C++ backend.", category="N", flag="--cpp-log-config"
    )
    model_server_home: Path | None = setting(None, JAVA, "Where TorchServe is installed.", category="N")
    version: str | None = setting(
        None, JAVA, "The version that wrote a snapshot.", category="N", variable=None
    )

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
