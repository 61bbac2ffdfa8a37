"""All settings of the server as one frozen value, a row each (reference 3.3, and the server's own)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modelserver.engine.policy_names import POLICIES
from modelserver.engine.resources import usable_cpus
from modelserver.models.settings.address import Address
from modelserver.models.settings.key import JAVA, LARGEST, TORCHSERVE, Key, Kind, SettingGroup, keys_of
from modelserver.models.settings.model_defaults import ModelTable

if TYPE_CHECKING:
    from modelserver.models.settings.values import ModelToLoad

# Settings that are documented together.
ADDRESSES = SettingGroup("Addresses")
MODELS = SettingGroup("Models and stores")
BATCHING = SettingGroup("Batching, queues and workers")
CLUSTER = SettingGroup("Workers on other machines")
BATCHER = SettingGroup("KServe's batcher")
LIMITS = SettingGroup("Timeouts and sizes")
REQUESTS = SettingGroup("Requests and handlers")
ACCESS = SettingGroup("Access")
METRICS = SettingGroup("Metrics")
LOGS = SettingGroup("Logs")
PAYLOADS = SettingGroup("Payload log")
OPENTELEMETRY = SettingGroup("OpenTelemetry")
TLS = SettingGroup("TLS")
GRPC = SettingGroup("gRPC")
ENVIRONMENT = SettingGroup("Environment")
DEVICES = SettingGroup("Devices")

# Cores that a front end is for, and the most front ends by default.
CORES_EACH = 8
MOST_FRONT_ENDS = 4
ANY_URL = (re.compile("file://.*|http(s)?://.*", re.IGNORECASE),)

_INFERENCE = Address("http", "127.0.0.1", 8080)
_MANAGEMENT = Address("http", "127.0.0.1", 8081)
_METRICS = Address("http", "127.0.0.1", 8082)


@dataclass(frozen=True, slots=True)
class Settings:
    """A field per key of config.properties; None means "not set". ``load_settings`` makes paths absolute.

    ``sets_allowed_urls`` is not a key: whether ``allowed_urls`` differs from its default.
    """

    inference_address: Address = ADDRESSES(_INFERENCE, "Where predictions are served.")
    management_address: Address = ADDRESSES(
        _MANAGEMENT, "Where models are managed; off loopback, tokens are required."
    )
    metrics_address: Address = ADDRESSES(_METRICS, "Where metrics are read.")
    frontend_processes: Literal["auto"] | int = ADDRESSES(
        "auto",
        "Processes that accept requests; 1: the server itself; auto: one per 8 cores, at most 4.",
        minimum=1,
        maximum=64,
    )
    model_store: Path | str | None = MODELS(
        None,
        "The folder of archives that models are loaded from; it may be in an object store.",
        kind=Kind.STORE,
        flag="--model-store",
    )
    workflow_store: Path | None = MODELS(
        None, "The folder of workflow archives; by default the model store.", flag="--workflow-store"
    )
    enable_workflows: bool = MODELS(
        True, "Allow workflows: models and functions that answer together.", torchserve="false"
    )
    trust_pickles: bool = MODELS(
        False,
        "Serve pickled models (.joblib, .pkl) that a registration's url names: one can run any code when it "
        "is loaded.",
    )
    load_models: tuple[ModelToLoad, ...] = MODELS(
        (),
        "What to load at startup: archives, name=archive pairs, or all of the model store.",
        kind=Kind.LOAD_LIST,
        flag="--models",
    )
    models: ModelTable = MODELS(
        {},
        "Fallbacks per model and version: minWorkers, maxWorkers, batchSize, maxBatchDelay, timeouts.",
        kind=Kind.MODELS,
        variable=None,
    )
    model_snapshot: str | None = MODELS(
        None, "The state to restore, as written by a snapshot.", kind=Kind.JSON, variable=None
    )
    allowed_urls: tuple[re.Pattern[str], ...] = MODELS(
        ANY_URL,
        "URLs that models may be loaded from; private targets only if this key is set.",
        kind=Kind.URL_PATTERNS,
    )
    use_env_allowed_urls: bool = MODELS(False, "Let TS_ALLOWED_URLS set allowed_urls too.", variable=None)
    download_cache_size: int = MODELS(
        20 << 30,
        "Bytes of archives from object stores that are kept, for all servers of the user on this machine.",
        minimum=1,
    )
    install_py_dep_per_model: bool = MODELS(False, "Install an archive's requirements file with pip.")
    batch_policy: str | None = BATCHING(
        None,
        "When a batch is sent, unless the model says; empty: window if a delay is given, else adaptive.",
        kind=Kind.CHOICE,
        choices=POLICIES,
        torchserve="window",
    )
    split_instances: Literal["auto", "true", "false"] = BATCHING(
        "auto", "Split V1 and V2 bodies into instances for custom handlers as well.", torchserve="false"
    )
    isolate_failures: bool = BATCHING(
        True,
        "Retry a failed batch in parts, so that only the failing request gets an error.",
        torchserve="false",
    )
    job_queue_size: int = BATCHING(100, "Requests that may wait per model version.", minimum=1)
    job_queue_bytes: int = BATCHING(
        512 * 1024 * 1024, "Bytes of request bodies that may wait per model version.", minimum=1
    )
    default_workers_per_model: int = BATCHING(
        0,
        "Workers per model by default; 0: at startup one per GPU or CPU, on a cluster one; none when "
        "registered.",
        minimum=0,
    )
    load: Literal["at-start", "on-demand"] = BATCHING(
        "at-start",
        "When workers of a model are started: at its registration, or for its first request.",
        flag="--load",
    )
    idle_timeout: int = BATCHING(
        300,
        "Seconds without a request after which a model that is loaded on demand is parked; 0: never.",
        minimum=0,
        maximum=LARGEST,
    )
    max_models_memory: int = BATCHING(
        0,
        "Bytes of memory for the workers of models that are loaded on demand; 0: nine tenths of what is free "
        "when the first one is registered.",
        minimum=0,
    )
    max_device_memory: int = BATCHING(
        0, "Bytes of each GPU's memory for the same; 0: nine tenths of what is free.", minimum=0
    )
    autoscale: bool = BATCHING(
        False, "Start and stop workers by load, between a model's minWorkers and maxWorkers."
    )
    autoscale_target_wait: int = BATCHING(
        100,
        "Milliseconds that requests may wait for a worker before more are added, with autoscale.",
        minimum=1,
        maximum=LARGEST,
    )
    autoscale_up_pause: int = BATCHING(
        2000, "Milliseconds that such waits must have lasted, with autoscale.", minimum=100, maximum=LARGEST
    )
    autoscale_down_pause: int = BATCHING(
        60_000,
        "Milliseconds that fewer workers must have been enough before one is removed, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    )
    max_worker_memory: int = BATCHING(
        0, "Bytes of memory that a worker may use before it is replaced; 0: unlimited.", minimum=0
    )
    max_worker_requests: int = BATCHING(
        0, "Requests that a worker answers before it is replaced; 0: unlimited.", minimum=0, maximum=LARGEST
    )
    initial_worker_port: int = BATCHING(9000, "The id of the first worker.", minimum=0)
    worker_start: Literal["auto", "spawn"] = BATCHING(
        "auto",
        "auto: fork workers from a process that has imported torch, where that is safe; spawn: never fork.",
    )
    enable_batcher: bool = BATCHER(
        False,
        "Batch requests for every model as KServe's batcher does, unless the model says otherwise.",
        variable="MODELSERVER_ENABLE_BATCHER",
        flag="--enable-batcher",
    )
    batcher_max_batch_size: int = BATCHER(
        32,
        "Instances in a batch, with enable_batcher.",
        variable="MODELSERVER_MAX_BATCHSIZE",
        flag="--max-batchsize",
        minimum=1,
        maximum=LARGEST,
    )
    batcher_max_latency: int = BATCHER(
        500,
        "Milliseconds that the first instance of a batch waits for more, with enable_batcher.",
        variable="MODELSERVER_MAX_LATENCY",
        flag="--max-latency",
        minimum=1,
        maximum=LARGEST,
    )
    batcher_timeout: int = BATCHER(
        60,
        "Seconds until a request is answered with 504, with enable_batcher.",
        variable="MODELSERVER_BATCHER_TIMEOUT",
        flag="--batcher-timeout",
        minimum=1,
        maximum=LARGEST,
    )
    default_response_timeout: int = LIMITS(120, "Seconds that a worker may take for one batch.", minimum=1)
    default_startup_timeout: int = LIMITS(120, "Seconds that a worker may take to load its model.", minimum=1)
    unregister_model_timeout: int = LIMITS(
        120,
        "Seconds that an unregistered model has to answer waiting requests and stop its workers.",
        minimum=0,
    )
    shadow_bodies: int = LIMITS(
        0,
        "Bytes of request and answers that are kept where the answer of a shadow differs; 0 keeps none.",
        minimum=0,
        maximum=LARGEST,
    )
    silence_timeout: float = LIMITS(
        30.0, "Seconds without a sign of life before a worker is replaced.", minimum=0.1
    )
    drain_timeout: float = LIMITS(
        30.0, "Seconds that accepted requests have to finish after SIGTERM.", minimum=0
    )
    max_request_size: int = LIMITS(6553500, "The largest request body, in bytes.", minimum=1)
    max_incoming_bytes: int = LIMITS(
        512 * 1024 * 1024,
        "Bytes of incoming requests, over all connections at once; a single request is always accepted.",
        minimum=1,
    )
    max_outgoing_bytes: int = LIMITS(
        512 * 1024 * 1024,
        "Bytes of answers that wait for clients, over all connections at once; a single answer always may.",
        minimum=1,
    )
    max_request_instances: int = LIMITS(
        10_000,
        "Instances or rows of one V1 or V2 request; many more would hold up other requests.",
        minimum=1,
    )
    max_request_tensors: int = LIMITS(
        4096, "Inputs of one V2 request, its outputs, and all parameters together.", minimum=1
    )
    max_response_size: int = LIMITS(6553500, "The largest prediction, in bytes.", minimum=1)
    expose_errors: Literal["auto", "true", "false"] = REQUESTS(
        "auto",
        "Tell clients why a handler failed: exception, line, hint and request id; auto: on loopback. Unless "
        "it is false, a 404 of a model says which models there are.",
        torchserve="false",
    )
    decode_input_request: bool = REQUESTS(True, "Pass JSON and text to handlers decoded; false: as bytes.")
    default_service_handler: str | None = REQUESTS(
        None, "The handler (file.py:function) of archives that name none."
    )
    openai_api: bool = REQUESTS(True, "Serve OpenAI's API: /v1/chat/completions, /v1/embeddings and others.")
    service_envelope: Literal["body", "json", "kserve", "kservev2"] | None = REQUESTS(
        None, "The request envelope of all models."
    )
    limit_max_image_pixels: bool = REQUESTS(True, "Refuse images with suspiciously many pixels.")
    blacklist_env_vars: re.Pattern[str] | None = REQUESTS(
        None, "Environment variables hidden from workers: names that match fully."
    )
    python: str | None = REQUESTS(
        None,
        "The Python that runs workers; by default the server's own. modelserver need not be installed "
        "there, but msgspec, orjson, python-multipart and PyYAML must be; 3.10 or newer.",
        variable=None,
    )
    ts_open_inference_protocol: bool = REQUESTS(
        True,
        "Serve the Open Inference Protocol's health and metadata, and its gRPC service; "
        "TS_OPEN_INFERENCE_PROTOCOL=oip is always read.",
        variable="TS_OPEN_INFERENCE_PROTOCOL",
        torchserve="false",
    )
    ts_header_key_sequence_id: str = REQUESTS(
        "ts_request_sequence_id",
        "The request header that names a sequence.",
        variable="TS_HEADER_KEY_SEQUENCE_ID",
    )
    ts_header_key_sequence_start: str = REQUESTS(
        "ts_request_sequence_start",
        "The request header that starts a sequence.",
        variable="TS_HEADER_KEY_SEQUENCE_START",
    )
    ts_header_key_sequence_end: str = REQUESTS(
        "ts_request_sequence_end",
        "The response header that ends sequences.",
        variable="TS_HEADER_KEY_SEQUENCE_END",
    )
    worker_launcher: Literal["local", "ray", "agents"] = CLUSTER(
        "local",
        "Where workers run; local: this machine; ray: a Ray cluster; agents: here, as if on other machines.",
    )
    ray_address: str | None = CLUSTER(None, "The Ray cluster's head, as host:port.")
    ray_python: Path | None = CLUSTER(
        None,
        "The Python with the cluster's Ray, and modelserver, on this machine; by default the server's own.",
        kind=Kind.FILE,
    )
    worker_address: str = CLUSTER(
        "127.0.0.1:0", "Where workers on other machines connect, as host:port; port 0 is any free one."
    )
    worker_tls: Literal["on", "off"] = CLUSTER(
        "on", "off: such connections are not encrypted, for a private network."
    )
    worker_resources: str | None = CLUSTER(
        None,
        "What a worker needs there if its model does not say: `resources` of model-config.yaml as JSON.",
        kind=Kind.JSON,
    )
    snapshot_folder: Path | None = CLUSTER(
        None, "The folder of snapshots; by default `config` in the folder of logs."
    )
    standby: bool = CLUSTER(
        False, "Serve only while no other server with this snapshot_folder does; take over from it."
    )
    placement_timeout: float = CLUSTER(
        60.0, "Seconds that a worker waits for a machine before the request for one is repeated.", minimum=1
    )
    worker_lost_timeout: float = CLUSTER(
        10.0,
        "Seconds of silence after which a machine counts as lost, and ends its workers itself.",
        minimum=1,
    )
    disable_token_authorization: bool = ACCESS(
        False, "Serve without tokens, off loopback too.", flag="--disable-token-auth"
    )
    token_authorization: Literal["auto", "always"] = ACCESS(
        "auto",
        "When tokens are required; auto: if an address is not loopback, or tokens are configured.",
        torchserve="always",
    )
    token_file: Path | None = ACCESS(
        None, "A file or folder with your own tokens, such as a mounted secret; it may change at run time."
    )
    token_expiration_min: float | None = ACCESS(
        None,
        "Minutes that a token generated by the server is valid; empty or 0: until the server stops.",
        variable="TS_TOKEN_EXPIRATION_TIME_MIN",
        minimum=0,
        torchserve="60",
    )
    ping_token: bool = ACCESS(
        False, "Require the inference token for /ping too, as TorchServe does.", torchserve="true"
    )
    enable_model_api: bool = ACCESS(
        True,
        "Allow registering and unregistering models over the API.",
        flag="--enable-model-api",
        torchserve="false",
    )
    enable_console: bool = ACCESS(
        True,
        "Show models, load and settings at /console of management_address, where inference is elsewhere.",
        torchserve="false",
    )
    allow_recording: bool = ACCESS(
        False, "Allow clients with the management token to record requests and answers."
    )
    shared_memory_prefix: str | None = ACCESS(
        None,
        "Clients may register shared memory for tensors if its name begins so; / for any, not set for none.",
    )
    management_hosts: str | None = ACCESS(
        None,
        "Names besides localhost, separated by commas, that a loopback address without tokens answers to.",
    )
    cors_allowed_origin: str | None = ACCESS(
        None, "The Access-Control-Allow-Origin header of every response."
    )
    cors_allowed_methods: str | None = ACCESS(
        None, "The Access-Control-Allow-Methods header of every response."
    )
    cors_allowed_headers: str | None = ACCESS(
        None, "The Access-Control-Allow-Headers header of every response."
    )
    enable_metrics_api: bool = METRICS(True, "Serve metrics at metrics_address.")
    metrics_mode: Literal["log", "prometheus", "legacy"] = METRICS(
        "prometheus", "Where metrics go.", torchserve="log"
    )
    metrics_config: Path | None = METRICS(
        None, "A metrics.yaml that lists the metrics to keep; without it, all are kept."
    )
    model_metrics_auto_detect: bool = METRICS(
        False, "Accept handlers' metrics that metrics_config does not list."
    )
    disable_system_metrics: bool = METRICS(False, "Do not collect CPU, memory, disk and GPU metrics.")
    system_metrics_cmd: str | None = METRICS(
        None, "Your own collector of system metrics: a Python script and its arguments.", variable=None
    )
    metric_time_interval: int = METRICS(
        60, "Seconds between readings of system metrics.", variable=None, minimum=1
    )
    log_format: Literal["text", "json"] = LOGS("text", "The format of lines in log files and on the console.")
    log_files: bool = LOGS(True, "Write log files; false: only print their lines.")
    log_probes: bool = LOGS(True, "Log health checks that succeed in the access log, too.")
    async_logging: bool = LOGS(
        False, "Write logs in a separate thread, so that a slow disk does not hold up requests."
    )
    otel: Literal["off", "traces", "metrics", "all"] = OPENTELEMETRY(
        "off",
        "What is sent to an OpenTelemetry collector by OTLP; OTEL_ variables say where and how much.",
        variable="MODELSERVER_OTEL",
        flag="--otel",
    )
    payload_log_url: str | None = PAYLOADS(
        None,
        "The URL (http or https) that requests and responses are sent to as CloudEvents; empty: none.",
        variable="MODELSERVER_LOG_URL",
        flag="--log-url",
    )
    payload_log_mode: Literal["all", "request", "response"] = PAYLOADS(
        "all", "Which payloads are sent.", variable="MODELSERVER_LOG_MODE", flag="--log-mode"
    )
    payload_log_source: str | None = PAYLOADS(
        None,
        "The source attribute of events; by default the name of the host or pod.",
        variable="MODELSERVER_SOURCE_URI",
        flag="--source-uri",
    )
    payload_log_inference_service: str | None = PAYLOADS(
        None,
        "The InferenceService attribute of events.",
        variable="MODELSERVER_INFERENCE_SERVICE",
        flag="--inference-service",
    )
    payload_log_namespace: str | None = PAYLOADS(
        None, "The namespace attribute of events.", variable="MODELSERVER_NAMESPACE", flag="--namespace"
    )
    payload_log_endpoint: str | None = PAYLOADS(
        None, "The endpoint attribute of events.", variable="MODELSERVER_ENDPOINT", flag="--endpoint"
    )
    payload_log_component: str | None = PAYLOADS(
        None,
        "The component attribute of events: predictor, transformer or explainer.",
        variable="MODELSERVER_COMPONENT",
        flag="--component",
    )
    payload_log_headers: str | None = PAYLOADS(
        None,
        "Request headers to include in events, separated by commas; none with credentials.",
        variable="MODELSERVER_METADATA_HEADERS",
        flag="--metadata-headers",
    )
    payload_log_annotations: str | None = PAYLOADS(
        None,
        "Annotations to include in events: name=value items separated by commas.",
        variable="MODELSERVER_METADATA_ANNOTATIONS",
        flag="--metadata-annotations",
    )
    payload_log_ca_file: Path | None = PAYLOADS(
        None,
        "Certificate authorities (PEM) for an https sink; by default the system's.",
        kind=Kind.FILE,
        variable="MODELSERVER_LOGGER_CA_CERT_FILE",
        flag="--logger-ca-cert-file",
    )
    payload_log_skip_verify: bool = PAYLOADS(
        False,
        "Do not verify the certificate of an https sink.",
        variable="MODELSERVER_LOGGER_TLS_SKIP_VERIFY",
        flag="--logger-tls-skip-verify",
    )
    payload_log_queue_size: int = PAYLOADS(
        100, "Events that may wait for the sink; more are dropped and counted.", minimum=1
    )
    payload_log_queue_bytes: int = PAYLOADS(
        64 * 1024 * 1024, "Bytes of bodies that may wait for the sink.", minimum=1
    )
    payload_log_max_body: int = PAYLOADS(
        6553500, "The largest body that is sent, in bytes; larger ones are dropped and counted.", minimum=0
    )
    payload_log_timeout: float = PAYLOADS(10.0, "Seconds to wait for the sink.", minimum=0.1)
    payload_log_drain_timeout: float = PAYLOADS(
        2.0, "Seconds that a stopping server waits for unsent events.", minimum=0
    )
    payload_log_connections: int = PAYLOADS(5, "Events that are sent concurrently.", minimum=1, maximum=64)
    private_key_file: Path | None = TLS(None, "The private key of https addresses (PEM).", kind=Kind.FILE)
    certificate_file: Path | None = TLS(
        None, "The certificate chain of https addresses (PEM).", kind=Kind.FILE
    )
    keystore: Path | None = TLS(
        None, "A PKCS12 file with key and certificate, instead of the two PEM files.", kind=Kind.FILE
    )
    keystore_pass: str = TLS("changeit", "The password of the keystore.", secret=True)
    keystore_type: str = TLS("PKCS12", "The format of the keystore: only PKCS12 is supported.")
    tls_client_ca_file: Path | None = TLS(
        None,
        "Certificate authorities (PEM): clients of https addresses must present a certificate from one.",
        kind=Kind.FILE,
    )
    enable_grpc_api: bool = GRPC(True, "Serve gRPC; false: do not bind its two ports.")
    grpc_inference_address: str = GRPC("127.0.0.1", "The host that gRPC inference binds.")
    grpc_management_address: str = GRPC("127.0.0.1", "The host that gRPC management binds.")
    grpc_inference_port: int = GRPC(7070, "The port of gRPC inference.", minimum=0, maximum=65535)
    grpc_management_port: int = GRPC(7071, "The port of gRPC management.", minimum=0, maximum=65535)
    enable_grpc_ssl: bool = GRPC(False, "Serve gRPC over TLS.")
    grpc_inference_max_connection_age_ms: int | None = GRPC(
        None,
        "The maximum age of a gRPC inference connection, in milliseconds; by default unlimited.",
        minimum=1,
    )
    grpc_inference_max_connection_age_grace_ms: int | None = GRPC(
        None,
        "Milliseconds for calls on a gRPC inference connection past its age; by default unlimited.",
        minimum=1,
    )
    grpc_management_max_connection_age_ms: int | None = GRPC(
        None,
        "The maximum age of a gRPC management connection, in milliseconds; by default unlimited.",
        minimum=1,
    )
    grpc_management_max_connection_age_grace_ms: int | None = GRPC(
        None,
        "Milliseconds for calls on a gRPC management connection past its age; by default unlimited.",
        minimum=1,
    )
    compat_defaults: Literal["modelserver", "torchserve"] = ENVIRONMENT(
        "modelserver",
        "Whose defaults apply to keys that are not set; TS_COMPAT_DEFAULTS is always read.",
        flag="--compat-defaults",
    )
    enable_envvars_config: bool = ENVIRONMENT(
        False, "Let TS_* environment variables override this file and the flags.", variable=None
    )
    number_of_gpu: int | None = DEVICES(None, "The most GPUs to use; by default all.", minimum=0)
    require_gpu: bool = DEVICES(
        False, "Refuse to start without a GPU, and to load a model on the CPU that was assigned one."
    )
    ipex_enable: bool = DEVICES(False, "Use Intel's extension for PyTorch.")
    ipex_gpu_enable: bool = DEVICES(False, "Use Intel's extension on GPUs.")
    cpu_launcher_enable: bool = DEVICES(False, "Start workers with PyTorch's CPU launcher.")
    cpu_launcher_args: str | None = DEVICES(None, "Arguments of the CPU launcher.")
    initial_distribution_port: int = DEVICES(
        29500,
        "The first of 1000 ports where the processes of a worker meet; 0: any free port.",
        minimum=0,
        maximum=65535,
    )
    debug: bool = JAVA(False, "Connect to a running worker.")
    number_of_netty_threads: int = JAVA(0, "Threads of the front end.")
    netty_client_threads: int = JAVA(0, "Threads that talk to workers.")
    use_native_io: bool = JAVA(True, "Native transports.", variable=None)
    io_ratio: int = JAVA(50, "The share of I/O in a thread's time.", variable=None)
    prefer_direct_buffer: bool = JAVA(False, "Direct buffers.")
    vmargs: str | None = JAVA(None, "Arguments of the Java VM.", variable=None)
    plugins_path: Path | None = JAVA(None, "A folder of Java plugins.", variable=None, flag="--plugins-path")
    cpp_log_config: Path | None = JAVA(None, "Logging of the C++ backend.", flag="--cpp-log-config")
    model_server_home: Path | None = JAVA(None, "Where TorchServe is installed.")
    version: str | None = JAVA(None, "The version that wrote a snapshot.", variable=None)
    sets_allowed_urls: bool = False

    @property
    def as_torchserve(self) -> bool:
        """Whether TorchServe's defaults apply, and its rules where there is no key."""
        return self.compat_defaults == TORCHSERVE

    @property
    def tells_names(self) -> bool:
        """Whether a 404 of a model or version says which there are: all who may predict may list them."""
        return self.expose_errors != "false"

    @property
    def local_store(self) -> Path | None:
        """The model store, if it is a folder of this machine."""
        return None if isinstance(self.model_store, str) else self.model_store

    @property
    def requires_local_gpu(self) -> bool:
        """Whether this machine must have a GPU: with workers on other machines, these matter."""
        return self.require_gpu and self.worker_launcher == "local"

    @property
    def front_ends(self) -> int:
        """How many processes handle HTTP; 1: the server itself.

        ``auto`` is one per ``CORES_EACH`` cores, at most ``MOST_FRONT_ENDS``; docs/scaling.md says why.
        """
        if isinstance(self.frontend_processes, int):
            return self.frontend_processes
        return max(1, min(usable_cpus() // CORES_EACH, MOST_FRONT_ENDS))

    @property
    def has_console(self) -> bool:
        """Whether there is a console: never at an address that serves inference."""
        return self.enable_console and self.management_address != self.inference_address

    @property
    def console_url(self) -> str | None:
        """Where a browser finds the console, if there is one."""
        is_reachable = self.has_console and self.management_address.scheme != "unix"
        return f"{self.management_address}/console" if is_reachable else None

    @property
    def shows_errors(self) -> bool:
        """Whether clients see what went wrong in a handler; with ``auto`` only on loopback."""
        if self.expose_errors != "auto":
            return self.expose_errors == "true"
        grpc = Address("http", self.grpc_inference_address, self.grpc_inference_port)
        return self.inference_address.is_loopback and (not self.enable_grpc_api or grpc.is_loopback)

    @property
    def uses_tls(self) -> bool:
        addresses = (self.inference_address, self.management_address, self.metrics_address)
        grpc = self.enable_grpc_api and self.enable_grpc_ssl
        return grpc or any(address.scheme == "https" for address in addresses)

    @property
    def load_all(self) -> bool:
        """Whether ``load_models`` is ``all``: everything in the model store (reference 2.3)."""
        return [(item.name, item.url.lower()) for item in self.load_models] == [(None, "all")]

    def as_text(self, sources: Mapping[str, str]) -> list[tuple[Key, str, str]]:
        """Each with its value as one line of text, secrets masked, and its source."""
        old = self.as_torchserve
        return [
            (key, key.masked(getattr(self, name)), key.origin(sources[name], as_torchserve=old))
            for name, key in KEYS.items()
        ]


KEYS = keys_of(Settings)
"""Every key of config.properties by name (reference 3.3, and the server's own)."""

NOT_YET = frozenset({"cpu_launcher_args", "cpu_launcher_enable", "ipex_enable", "ipex_gpu_enable"})
"""Keys that are validated but not implemented yet."""
