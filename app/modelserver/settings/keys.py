"""Every key of config.properties: one row each (reference 3.3, and the server's own)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Category = Literal["C", "N", "D"]

# Of a whole number that counts instances or measures time: as model-config.yaml has it.
LARGEST = 2**31 - 1


class Kind(Enum):
    """What the text of a value is read as; the value says it in words."""

    BOOLEAN = "true or false"
    INTEGER = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    CHOICE = "one of"
    ADDRESS = "http[s]://host[:port] or unix:/path"
    PATH = "a path"
    FILE = "an existing file"
    DIRECTORY = "an existing directory"
    REGEX = "a regular expression"
    URL_PATTERNS = "regular expressions, separated by commas"
    LOAD_LIST = "[name=]archive items, separated by commas, or all"
    JSON = "a JSON object"
    COUNT = "auto, or a whole number"
    MODELS = 'JSON like {"name": {"version": {"batchSize": 8}}}'


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    ``default`` is written as in the file, empty where nothing is set. ``category`` is C (core), N (of
    TorchServe's Java server or its workflows only) or D (of particular devices). ``variable`` is given where
    it is not ``TS_`` and the name in capitals, and None where no environment variable sets the key.
    ``torchserve`` is the default under ``compat_defaults=torchserve``, None where it is the same.
    """

    group: str
    name: str
    kind: Kind
    default: str
    summary: str
    category: Category = "C"
    variable: str | None = ""
    flag: str | None = None
    minimum: float | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    torchserve: str | None = None

    @property
    def env(self) -> str | None:
        """The environment variable that sets it: where the file has ``enable_envvars_config=true``, or where
        it :attr:`is_ours`, always.
        """
        return f"TS_{self.name.upper()}" if self.variable == "" else self.variable

    @property
    def is_ours(self) -> bool:
        """Its variable, which TorchServe does not know, is always read."""
        return (self.env or "").startswith("MODELSERVER_")

    def default_of(self, defaults: str | None) -> str:
        """Its default in one of the two sets (``compat_defaults``)."""
        return self.torchserve if defaults == TORCHSERVE and self.torchserve is not None else self.default

    @property
    def allowed(self) -> str:
        """The values it takes, in words that fit before ``is needed``."""
        if self.kind is Kind.CHOICE:
            return f"one of {', '.join(self.choices)}"
        if self.minimum is not None and self.maximum is not None:
            return f"{self.kind.value} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{self.kind.value} of at least {self.minimum}"
        return str(self.kind.value)


OWN = "modelserver"
TORCHSERVE = "torchserve"
"""The two sets of defaults."""

ADDRESSES = "Addresses"
MODELS = "Models and stores"
BATCHING = "Batching, queues and workers"
BATCHER = "KServe's batcher"
LIMITS = "Timeouts and sizes"
REQUESTS = "Requests and handlers"
ACCESS = "Access"
METRICS = "Metrics"
LOGS = "Logs"
PAYLOADS = "Payload log"
TLS = "TLS"
GRPC = "gRPC"
ENVIRONMENT = "Environment"
DEVICES = "Devices"
JAVA = "Accepted for TorchServe's sake"

_ADDRESS_KEYS = (
    Key(
        ADDRESSES, "inference_address", Kind.ADDRESS, "http://127.0.0.1:8080", "Where predictions are served."
    ),
    Key(
        ADDRESSES,
        "management_address",
        Kind.ADDRESS,
        "http://127.0.0.1:8081",
        "Where models are managed; off loopback tokens are asked for.",
    ),
    Key(ADDRESSES, "metrics_address", Kind.ADDRESS, "http://127.0.0.1:8082", "Where metrics are read."),
    Key(
        ADDRESSES,
        "frontend_processes",
        Kind.COUNT,
        "auto",
        "Processes that take in requests; 1: the server itself; auto: one for 8 cores, at most 4.",
        minimum=1,
        maximum=64,
    ),
)

_MODEL_KEYS = (
    Key(
        MODELS,
        "model_store",
        Kind.DIRECTORY,
        "",
        "The folder of archives that models are loaded from.",
        flag="--model-store",
    ),
    Key(
        MODELS,
        "workflow_store",
        Kind.PATH,
        "",
        "The folder of workflow archives, for workflows, of which there are none.",
        category="N",
        flag="--workflow-store",
    ),
    Key(
        MODELS,
        "load_models",
        Kind.LOAD_LIST,
        "",
        "What is loaded at start: archives, name=archive pairs, or all of the model store.",
        flag="--models",
    ),
    Key(
        MODELS,
        "models",
        Kind.MODELS,
        "",
        "Fallbacks per model and version: minWorkers, maxWorkers, batchSize, maxBatchDelay, timeouts.",
        variable=None,
    ),
    Key(
        MODELS,
        "model_snapshot",
        Kind.JSON,
        "",
        "The state to restore, as a snapshot wrote it.",
        variable=None,
    ),
    Key(
        MODELS,
        "allowed_urls",
        Kind.URL_PATTERNS,
        "file://.*|http(s)?://.*",
        "URLs that models may be loaded from; private targets only where this key is set.",
    ),
    Key(
        MODELS,
        "use_env_allowed_urls",
        Kind.BOOLEAN,
        "false",
        "Let TS_ALLOWED_URLS set allowed_urls too.",
        variable=None,
    ),
    Key(
        MODELS,
        "install_py_dep_per_model",
        Kind.BOOLEAN,
        "false",
        "Install the requirements file of an archive with pip.",
    ),
)

_BATCHING_KEYS = (
    Key(
        BATCHING,
        "batch_policy",
        Kind.CHOICE,
        "",
        "When a batch goes, for models that do not say; empty: window where a delay is given, else adaptive.",
        choices=("adaptive", "greedy", "window"),
        torchserve="window",
    ),
    Key(
        BATCHING,
        "split_instances",
        Kind.CHOICE,
        "auto",
        "Split V1 and V2 bodies into instances for custom handlers too.",
        choices=("auto", "true", "false"),
        torchserve="false",
    ),
    Key(
        BATCHING,
        "isolate_failures",
        Kind.BOOLEAN,
        "true",
        "Run a failed batch again in parts, so that only the guilty request fails.",
        torchserve="false",
    ),
    Key(
        BATCHING,
        "job_queue_size",
        Kind.INTEGER,
        "100",
        "Requests that may wait for one model version.",
        minimum=1,
    ),
    Key(
        BATCHING,
        "job_queue_bytes",
        Kind.INTEGER,
        "536870912",
        "Bytes of request bodies that may wait for one model version.",
        minimum=1,
    ),
    Key(
        BATCHING,
        "default_workers_per_model",
        Kind.INTEGER,
        "0",
        "Workers of a model that does not say; 0: one per GPU or CPU at start, none when registered.",
        minimum=0,
    ),
    Key(
        BATCHING,
        "autoscale",
        Kind.BOOLEAN,
        "false",
        "Start and end workers by load, between a model's minWorkers and maxWorkers.",
    ),
    Key(
        BATCHING,
        "autoscale_target_wait",
        Kind.INTEGER,
        "100",
        "Milliseconds that requests may wait for a worker before there are more, with autoscale.",
        minimum=1,
        maximum=LARGEST,
    ),
    Key(
        BATCHING,
        "autoscale_up_pause",
        Kind.INTEGER,
        "2000",
        "Milliseconds that this must have lasted, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    ),
    Key(
        BATCHING,
        "autoscale_down_pause",
        Kind.INTEGER,
        "60000",
        "Milliseconds that fewer workers must have been enough before there are fewer, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    ),
    Key(
        BATCHING,
        "max_worker_memory",
        Kind.INTEGER,
        "0",
        "Bytes of memory that a worker may occupy until a fresh one takes its place; 0: without limit.",
        minimum=0,
    ),
    Key(
        BATCHING,
        "max_worker_requests",
        Kind.INTEGER,
        "0",
        "Requests that a worker answers until a fresh one takes its place; 0: without limit.",
        minimum=0,
        maximum=LARGEST,
    ),
    Key(
        BATCHING,
        "initial_worker_port",
        Kind.INTEGER,
        "9000",
        "The id of the first worker.",
        minimum=0,
    ),
    Key(
        BATCHING,
        "worker_start",
        Kind.CHOICE,
        "auto",
        "auto: fork workers from a process that has imported torch, where that is safe; spawn: never.",
        choices=("auto", "spawn"),
    ),
)

_BATCHER_KEYS = (
    Key(
        BATCHER,
        "enable_batcher",
        Kind.BOOLEAN,
        "false",
        "Gather requests for every model as KServe's batcher does, unless it says otherwise itself.",
        variable="MODELSERVER_ENABLE_BATCHER",
        flag="--enable-batcher",
    ),
    Key(
        BATCHER,
        "batcher_max_batch_size",
        Kind.INTEGER,
        "32",
        "Instances in a batch, with enable_batcher.",
        variable="MODELSERVER_MAX_BATCHSIZE",
        flag="--max-batchsize",
        minimum=1,
        maximum=LARGEST,
    ),
    Key(
        BATCHER,
        "batcher_max_latency",
        Kind.INTEGER,
        "500",
        "Milliseconds that the first instance of a batch waits for others, with enable_batcher.",
        variable="MODELSERVER_MAX_LATENCY",
        flag="--max-latency",
        minimum=1,
        maximum=LARGEST,
    ),
    Key(
        BATCHER,
        "batcher_timeout",
        Kind.INTEGER,
        "60",
        "Seconds until a request is answered 504, with enable_batcher.",
        variable="MODELSERVER_BATCHER_TIMEOUT",
        flag="--batcher-timeout",
        minimum=1,
        maximum=LARGEST,
    ),
)

_LIMIT_KEYS = (
    Key(
        LIMITS,
        "default_response_timeout",
        Kind.INTEGER,
        "120",
        "Seconds a worker may take for one batch.",
        minimum=1,
    ),
    Key(
        LIMITS,
        "default_startup_timeout",
        Kind.INTEGER,
        "120",
        "Seconds a worker may take to load its model.",
        minimum=1,
    ),
    Key(
        LIMITS,
        "unregister_model_timeout",
        Kind.INTEGER,
        "120",
        "Seconds that a model that is unregistered has to answer what waits for it and to end its workers.",
        minimum=0,
    ),
    Key(
        LIMITS,
        "silence_timeout",
        Kind.NUMBER,
        "30",
        "Seconds without a sign of life after which a worker is replaced.",
        minimum=0.1,
    ),
    Key(
        LIMITS,
        "drain_timeout",
        Kind.NUMBER,
        "30",
        "Seconds that accepted requests have to finish after SIGTERM.",
        minimum=0,
    ),
    Key(LIMITS, "max_request_size", Kind.INTEGER, "6553500", "Bytes of the largest request body.", minimum=1),
    Key(
        LIMITS,
        "max_incoming_bytes",
        Kind.INTEGER,
        "536870912",
        "Bytes of requests that may be coming in at one time, over all connections; one request always may.",
        minimum=1,
    ),
    Key(
        LIMITS,
        "max_request_instances",
        Kind.INTEGER,
        "10000",
        "Instances or rows of one V1 or V2 request; to take in many more holds up other requests.",
        minimum=1,
    ),
    Key(
        LIMITS,
        "max_request_tensors",
        Kind.INTEGER,
        "4096",
        "Inputs of one V2 request, its outputs, and the parameters of all of them together.",
        minimum=1,
    ),
    Key(LIMITS, "max_response_size", Kind.INTEGER, "6553500", "Bytes of the largest prediction.", minimum=1),
)

_REQUEST_KEYS = (
    Key(
        REQUESTS,
        "expose_errors",
        Kind.CHOICE,
        "auto",
        "Answer failures of handlers with exception, line, hint and request id; auto: on loopback.",
        choices=("auto", "true", "false"),
        torchserve="false",
    ),
    Key(
        REQUESTS,
        "decode_input_request",
        Kind.BOOLEAN,
        "true",
        "Hand JSON and text to handlers decoded; false: as bytes.",
    ),
    Key(
        REQUESTS,
        "default_service_handler",
        Kind.TEXT,
        "",
        "The handler (file.py:function) of archives that name none.",
    ),
    Key(
        REQUESTS,
        "service_envelope",
        Kind.CHOICE,
        "",
        "The request envelope of all models.",
        choices=("body", "json", "kserve", "kservev2"),
    ),
    Key(
        REQUESTS,
        "limit_max_image_pixels",
        Kind.BOOLEAN,
        "true",
        "Refuse images with suspiciously many pixels.",
    ),
    Key(
        REQUESTS,
        "blacklist_env_vars",
        Kind.REGEX,
        "",
        "Environment variables that workers do not see: names that match fully.",
    ),
    Key(
        REQUESTS,
        "python",
        Kind.TEXT,
        "",
        "The Python that runs workers; the server's own unless given. modelserver need not be installed "
        "there, but msgspec, orjson, python-multipart and PyYAML; 3.10 or newer.",
        variable=None,
    ),
    Key(
        REQUESTS,
        "ts_open_inference_protocol",
        Kind.BOOLEAN,
        "true",
        "Serve the Open Inference Protocol's health and metadata, and its gRPC service; "
        "TS_OPEN_INFERENCE_PROTOCOL=oip is always read.",
        variable="TS_OPEN_INFERENCE_PROTOCOL",
        torchserve="false",
    ),
    Key(
        REQUESTS,
        "ts_header_key_sequence_id",
        Kind.TEXT,
        "ts_request_sequence_id",
        "The request header that names a sequence.",
        variable="TS_HEADER_KEY_SEQUENCE_ID",
    ),
    Key(
        REQUESTS,
        "ts_header_key_sequence_start",
        Kind.TEXT,
        "ts_request_sequence_start",
        "The request header that starts a sequence.",
        variable="TS_HEADER_KEY_SEQUENCE_START",
    ),
    Key(
        REQUESTS,
        "ts_header_key_sequence_end",
        Kind.TEXT,
        "ts_request_sequence_end",
        "The response header that ends sequences.",
        variable="TS_HEADER_KEY_SEQUENCE_END",
    ),
)

_ACCESS_KEYS = (
    Key(
        ACCESS,
        "disable_token_authorization",
        Kind.BOOLEAN,
        "false",
        "Serve without tokens, off loopback too.",
        flag="--disable-token-auth",
    ),
    Key(
        ACCESS,
        "token_authorization",
        Kind.CHOICE,
        "auto",
        "When tokens are asked for; auto: if an address is not loopback, or tokens are given.",
        choices=("auto", "always"),
        torchserve="always",
    ),
    Key(
        ACCESS,
        "token_file",
        Kind.PATH,
        "",
        "A file or folder of tokens that you give, such as a mounted secret; it may change while serving.",
    ),
    Key(
        ACCESS,
        "token_expiration_min",
        Kind.NUMBER,
        "",
        "Minutes that a token made by the server is good for; empty or 0: until the server ends.",
        variable="TS_TOKEN_EXPIRATION_TIME_MIN",
        minimum=0,
        torchserve="60",
    ),
    Key(
        ACCESS,
        "ping_token",
        Kind.BOOLEAN,
        "false",
        "Ask for the inference token at /ping too, as TorchServe does.",
        torchserve="true",
    ),
    Key(
        ACCESS,
        "enable_model_api",
        Kind.BOOLEAN,
        "true",
        "Allow models to be registered and unregistered over the API.",
        flag="--enable-model-api",
        torchserve="false",
    ),
    Key(
        ACCESS,
        "cors_allowed_origin",
        Kind.TEXT,
        "",
        "The Access-Control-Allow-Origin header of every response.",
    ),
    Key(
        ACCESS,
        "cors_allowed_methods",
        Kind.TEXT,
        "",
        "The Access-Control-Allow-Methods header of every response.",
    ),
    Key(
        ACCESS,
        "cors_allowed_headers",
        Kind.TEXT,
        "",
        "The Access-Control-Allow-Headers header of every response.",
    ),
)

_METRIC_KEYS = (
    Key(METRICS, "enable_metrics_api", Kind.BOOLEAN, "true", "Serve metrics at metrics_address."),
    Key(
        METRICS,
        "metrics_mode",
        Kind.CHOICE,
        "prometheus",
        "Where metrics go.",
        choices=("log", "prometheus", "legacy"),
        torchserve="log",
    ),
    Key(
        METRICS,
        "metrics_config",
        Kind.PATH,
        "",
        "A metrics.yaml that lists the metrics there are; without it, all.",
    ),
    Key(
        METRICS,
        "model_metrics_auto_detect",
        Kind.BOOLEAN,
        "false",
        "Accept handlers' metrics that metrics_config does not list.",
    ),
    Key(
        METRICS,
        "disable_system_metrics",
        Kind.BOOLEAN,
        "false",
        "Collect no metrics of CPU, memory, disk and GPU.",
    ),
    Key(
        METRICS,
        "system_metrics_cmd",
        Kind.TEXT,
        "",
        "A collector of system metrics of your own: a Python script and its arguments.",
        variable=None,
    ),
    Key(
        METRICS,
        "metric_time_interval",
        Kind.INTEGER,
        "60",
        "Seconds between two readings of system metrics.",
        variable=None,
        minimum=1,
    ),
)

_LOG_KEYS = (
    Key(
        LOGS,
        "log_format",
        Kind.CHOICE,
        "text",
        "How the lines of the log files and of the console are written.",
        choices=("text", "json"),
    ),
    Key(
        LOGS,
        "async_logging",
        Kind.BOOLEAN,
        "false",
        "Let a thread of its own write the logs, so that a slow disk does not hold requests up.",
    ),
)

_PAYLOAD_KEYS = (
    Key(
        PAYLOADS,
        "payload_log_url",
        Kind.TEXT,
        "",
        "Where requests and answers are sent as CloudEvents, http or https; empty: nowhere.",
        variable="MODELSERVER_LOG_URL",
        flag="--log-url",
    ),
    Key(
        PAYLOADS,
        "payload_log_mode",
        Kind.CHOICE,
        "all",
        "Which of them are sent.",
        variable="MODELSERVER_LOG_MODE",
        flag="--log-mode",
        choices=("all", "request", "response"),
    ),
    Key(
        PAYLOADS,
        "payload_log_source",
        Kind.TEXT,
        "",
        "The source that events name; the host's (the pod's) name unless given.",
        variable="MODELSERVER_SOURCE_URI",
        flag="--source-uri",
    ),
    *(
        Key(
            PAYLOADS,
            f"payload_log_{name}",
            Kind.TEXT,
            "",
            f"The {meaning} that events name.",
            variable=f"MODELSERVER_{name.upper()}",
            flag=f"--{name.replace('_', '-')}",
        )
        for name, meaning in (
            ("inference_service", "InferenceService"),
            ("namespace", "namespace"),
            ("endpoint", "endpoint"),
            ("component", "component (predictor, transformer or explainer)"),
        )
    ),
    Key(
        PAYLOADS,
        "payload_log_headers",
        Kind.TEXT,
        "",
        "Request headers whose values events tell, separated by commas; none that hold credentials.",
        variable="MODELSERVER_METADATA_HEADERS",
        flag="--metadata-headers",
    ),
    Key(
        PAYLOADS,
        "payload_log_annotations",
        Kind.TEXT,
        "",
        "Annotations that events tell, name=value items separated by commas.",
        variable="MODELSERVER_METADATA_ANNOTATIONS",
        flag="--metadata-annotations",
    ),
    Key(
        PAYLOADS,
        "payload_log_ca_file",
        Kind.FILE,
        "",
        "Authorities, PEM, of an https sink; the system's unless given.",
        variable="MODELSERVER_LOGGER_CA_CERT_FILE",
        flag="--logger-ca-cert-file",
    ),
    Key(
        PAYLOADS,
        "payload_log_skip_verify",
        Kind.BOOLEAN,
        "false",
        "Send to an https sink whoever it is.",
        variable="MODELSERVER_LOGGER_TLS_SKIP_VERIFY",
        flag="--logger-tls-skip-verify",
    ),
    Key(
        PAYLOADS,
        "payload_log_queue_size",
        Kind.INTEGER,
        "100",
        "Events that may wait for the sink; further ones are dropped and counted.",
        minimum=1,
    ),
    Key(
        PAYLOADS,
        "payload_log_queue_bytes",
        Kind.INTEGER,
        "67108864",
        "Bytes of their bodies.",
        minimum=1,
    ),
    Key(
        PAYLOADS,
        "payload_log_max_body",
        Kind.INTEGER,
        "6553500",
        "Bytes of the largest body that is sent; larger ones are dropped and counted.",
        minimum=0,
    ),
    Key(
        PAYLOADS,
        "payload_log_timeout",
        Kind.NUMBER,
        "10",
        "Seconds to wait for the sink.",
        minimum=0.1,
    ),
    Key(
        PAYLOADS,
        "payload_log_drain_timeout",
        Kind.NUMBER,
        "2",
        "Seconds that the end of the server waits for events that are still to be sent.",
        minimum=0,
    ),
    Key(
        PAYLOADS,
        "payload_log_connections",
        Kind.INTEGER,
        "5",
        "Events that are sent at the same time.",
        minimum=1,
        maximum=64,
    ),
)

_TLS_KEYS = (
    Key(TLS, "private_key_file", Kind.FILE, "", "The private key of https addresses, PEM."),
    Key(TLS, "certificate_file", Kind.FILE, "", "The certificate chain of https addresses, PEM."),
    Key(
        TLS,
        "keystore",
        Kind.FILE,
        "",
        "A PKCS12 file with key and certificate, instead of the two PEM files.",
    ),
    Key(TLS, "keystore_pass", Kind.TEXT, "changeit", "The password of the keystore.", secret=True),
    Key(TLS, "keystore_type", Kind.TEXT, "PKCS12", "The format of the keystore: only PKCS12 can be read."),
    Key(
        TLS,
        "tls_client_ca_file",
        Kind.FILE,
        "",
        "Authorities, PEM: clients of https addresses must show a certificate of one of them.",
    ),
)

_GRPC_KEYS = (
    Key(GRPC, "enable_grpc_api", Kind.BOOLEAN, "true", "Serve gRPC; false: its two ports are not bound."),
    Key(GRPC, "grpc_inference_address", Kind.TEXT, "127.0.0.1", "The host that gRPC inference binds."),
    Key(GRPC, "grpc_management_address", Kind.TEXT, "127.0.0.1", "The host that gRPC management binds."),
    Key(
        GRPC,
        "grpc_inference_port",
        Kind.INTEGER,
        "7070",
        "The port of gRPC inference.",
        minimum=0,
        maximum=65535,
    ),
    Key(
        GRPC,
        "grpc_management_port",
        Kind.INTEGER,
        "7071",
        "The port of gRPC management.",
        minimum=0,
        maximum=65535,
    ),
    Key(GRPC, "enable_grpc_ssl", Kind.BOOLEAN, "false", "Serve gRPC over TLS."),
    *(
        Key(
            GRPC,
            f"grpc_{side}_max_connection_age_{suffix}",
            Kind.INTEGER,
            "",
            f"Milliseconds {meaning} gRPC {side} connection; without limit unless given.",
            minimum=1,
        )
        for side in ("inference", "management")
        for suffix, meaning in (("ms", "of life of a"), ("grace_ms", "left to the calls of an aged"))
    ),
)

_ENVIRONMENT_KEYS = (
    Key(
        ENVIRONMENT,
        "compat_defaults",
        Kind.CHOICE,
        OWN,
        "Whose defaults count for what nobody sets; TS_COMPAT_DEFAULTS is always read.",
        flag="--compat-defaults",
        choices=(OWN, TORCHSERVE),
    ),
    Key(
        ENVIRONMENT,
        "enable_envvars_config",
        Kind.BOOLEAN,
        "false",
        "Let TS_* environment variables override this file and the flags.",
        variable=None,
    ),
)

_DEVICE_KEYS = (
    Key(
        DEVICES,
        "number_of_gpu",
        Kind.INTEGER,
        "",
        "The most GPUs to use; all unless given.",
        category="D",
        minimum=0,
    ),
    Key(DEVICES, "ipex_enable", Kind.BOOLEAN, "false", "Use Intel's extension for PyTorch.", category="D"),
    Key(DEVICES, "ipex_gpu_enable", Kind.BOOLEAN, "false", "Use Intel's extension on GPUs.", category="D"),
    Key(
        DEVICES,
        "cpu_launcher_enable",
        Kind.BOOLEAN,
        "false",
        "Start workers with PyTorch's CPU launcher.",
        category="D",
    ),
    Key(DEVICES, "cpu_launcher_args", Kind.TEXT, "", "Arguments of the CPU launcher.", category="D"),
    Key(
        DEVICES,
        "initial_distribution_port",
        Kind.INTEGER,
        "29500",
        "The first port that the processes of one worker meet at, of 1000; 0: any that is free.",
        category="D",
        minimum=0,
        maximum=65535,
    ),
)

_JAVA_KEYS = (
    Key(JAVA, "debug", Kind.BOOLEAN, "false", "Connect to a worker that runs already.", category="N"),
    Key(JAVA, "number_of_netty_threads", Kind.INTEGER, "0", "Threads of the front end.", category="N"),
    Key(JAVA, "netty_client_threads", Kind.INTEGER, "0", "Threads that talk to workers.", category="N"),
    Key(JAVA, "use_native_io", Kind.BOOLEAN, "true", "Native transports.", category="N", variable=None),
    Key(JAVA, "io_ratio", Kind.INTEGER, "50", "The share of I/O in a thread.", category="N", variable=None),
    Key(JAVA, "prefer_direct_buffer", Kind.BOOLEAN, "false", "Direct buffers.", category="N"),
    Key(JAVA, "vmargs", Kind.TEXT, "", "Arguments of the Java machine.", category="N", variable=None),
    Key(
        JAVA,
        "plugins_path",
        Kind.PATH,
        "",
        "A folder of Java plugins.",
        category="N",
        variable=None,
        flag="--plugins-path",
    ),
    Key(
        JAVA,
        "cpp_log_config",
        Kind.PATH,
        "",
        "Logging of the C++ backend.",
        category="N",
        flag="--cpp-log-config",
    ),
    Key(JAVA, "model_server_home", Kind.PATH, "", "Where TorchServe is installed.", category="N"),
    Key(JAVA, "version", Kind.TEXT, "", "The version that wrote a snapshot.", category="N", variable=None),
)

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        *_ADDRESS_KEYS,
        *_MODEL_KEYS,
        *_BATCHING_KEYS,
        *_BATCHER_KEYS,
        *_LIMIT_KEYS,
        *_REQUEST_KEYS,
        *_ACCESS_KEYS,
        *_METRIC_KEYS,
        *_LOG_KEYS,
        *_PAYLOAD_KEYS,
        *_TLS_KEYS,
        *_GRPC_KEYS,
        *_ENVIRONMENT_KEYS,
        *_DEVICE_KEYS,
        *_JAVA_KEYS,
    )
}

NOT_YET = frozenset(
    {
        "cpu_launcher_args",
        "cpu_launcher_enable",
        "ipex_enable",
        "ipex_gpu_enable",
    }
)
"""Keys that are read and checked while what they set is not built."""
