"""The settings for addresses, models and serving, a row each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelserver.models.settings.address import Address
from modelserver.models.settings.key import (
    ADDRESSES,
    BATCHER,
    BATCHING,
    LARGEST,
    LIMITS,
    MODELS,
    REQUESTS,
    Kind,
    setting,
)

if TYPE_CHECKING:
    from pathlib import Path

    from modelserver.models.settings.model_defaults import ModelTable
    from modelserver.models.settings.values import ModelToLoad

_INFERENCE = Address("http", "127.0.0.1", 8080)
_MANAGEMENT = Address("http", "127.0.0.1", 8081)
_METRICS = Address("http", "127.0.0.1", 8082)
ANY_URL = (re.compile("file://.*|http(s)?://.*", re.IGNORECASE),)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """The settings for serving models and requests; ``Settings`` adds the others."""

    inference_address: Address = setting(_INFERENCE, ADDRESSES, "Where predictions are served.")
    management_address: Address = setting(
        _MANAGEMENT, ADDRESSES, "Where models are managed; off loopback, tokens are required."
    )
    metrics_address: Address = setting(_METRICS, ADDRESSES, "Where metrics are read.")
    frontend_processes: Literal["auto"] | int = setting(
        "auto",
        ADDRESSES,
        "Processes that accept requests; 1: the server itself; auto: one per 8 cores, at most 4.",
        minimum=1,
        maximum=64,
    )

    model_store: Path | str | None = setting(
        None,
        MODELS,
        "The folder of archives that models are loaded from; it may be in an object store.",
        kind=Kind.STORE,
        flag="--model-store",
    )
    workflow_store: Path | None = setting(
        None, MODELS, "The folder of workflow archives; by default the model store.", flag="--workflow-store"
    )
    enable_workflows: bool = setting(
        True, MODELS, "Allow workflows: models and functions that answer together.", torchserve="false"
    )
    trust_pickles: bool = setting(
        False,
        MODELS,
        "Serve pickled models (.joblib, .pkl) that a registration's url names: one can run any code when it "
        "is loaded.",
    )
    load_models: tuple[ModelToLoad, ...] = setting(
        (),
        MODELS,
        "What to load at startup: archives, name=archive pairs, or all of the model store.",
        kind=Kind.LOAD_LIST,
        flag="--models",
    )
    models: ModelTable = setting(
        {},
        MODELS,
        "Fallbacks per model and version: minWorkers, maxWorkers, batchSize, maxBatchDelay, timeouts.",
        kind=Kind.MODELS,
        variable=None,
    )
    model_snapshot: str | None = setting(
        None, MODELS, "The state to restore, as written by a snapshot.", kind=Kind.JSON, variable=None
    )
    allowed_urls: tuple[re.Pattern[str], ...] = setting(
        ANY_URL,
        MODELS,
        "URLs that models may be loaded from; private targets only if this key is set.",
        kind=Kind.URL_PATTERNS,
    )
    use_env_allowed_urls: bool = setting(
        False, MODELS, "Let TS_ALLOWED_URLS set allowed_urls too.", variable=None
    )
    download_cache_size: int = setting(
        20 << 30,
        MODELS,
        "Bytes of archives from object stores that are kept, for all servers of the user on this machine.",
        minimum=1,
    )
    install_py_dep_per_model: bool = setting(
        False, MODELS, "Install an archive's requirements file with pip."
    )

    batch_policy: Literal["adaptive", "greedy", "window"] | None = setting(
        None,
        BATCHING,
        "When a batch is sent, unless the model says; empty: window if a delay is given, else adaptive.",
        torchserve="window",
    )
    split_instances: Literal["auto", "true", "false"] = setting(
        "auto",
        BATCHING,
        "Split V1 and V2 bodies into instances for custom handlers as well.",
        torchserve="false",
    )
    isolate_failures: bool = setting(
        True,
        BATCHING,
        "Retry a failed batch in parts, so that only the failing request gets an error.",
        torchserve="false",
    )
    job_queue_size: int = setting(100, BATCHING, "Requests that may wait per model version.", minimum=1)
    job_queue_bytes: int = setting(
        512 * 1024 * 1024, BATCHING, "Bytes of request bodies that may wait per model version.", minimum=1
    )
    default_workers_per_model: int = setting(
        0,
        BATCHING,
        "Workers per model by default; 0: at startup one per GPU or CPU, on a cluster one; none when "
        "registered.",
        minimum=0,
    )
    load: Literal["at-start", "on-demand"] = setting(
        "at-start",
        BATCHING,
        "When workers of a model are started: at its registration, or for its first request.",
        flag="--load",
    )
    idle_timeout: int = setting(
        300,
        BATCHING,
        "Seconds without a request after which a model that is loaded on demand is parked; 0: never.",
        minimum=0,
        maximum=LARGEST,
    )
    max_models_memory: int = setting(
        0,
        BATCHING,
        "Bytes of memory for the workers of models that are loaded on demand; 0: nine tenths of what is free "
        "when the first one is registered.",
        minimum=0,
    )
    max_device_memory: int = setting(
        0, BATCHING, "Bytes of each GPU's memory for the same; 0: nine tenths of what is free.", minimum=0
    )
    autoscale: bool = setting(
        False, BATCHING, "Start and stop workers by load, between a model's minWorkers and maxWorkers."
    )
    autoscale_target_wait: int = setting(
        100,
        BATCHING,
        "Milliseconds that requests may wait for a worker before more are added, with autoscale.",
        minimum=1,
        maximum=LARGEST,
    )
    autoscale_up_pause: int = setting(
        2000,
        BATCHING,
        "Milliseconds that such waits must have lasted, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    )
    autoscale_down_pause: int = setting(
        60_000,
        BATCHING,
        "Milliseconds that fewer workers must have been enough before one is removed, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    )
    max_worker_memory: int = setting(
        0, BATCHING, "Bytes of memory that a worker may use before it is replaced; 0: unlimited.", minimum=0
    )
    max_worker_requests: int = setting(
        0,
        BATCHING,
        "Requests that a worker answers before it is replaced; 0: unlimited.",
        minimum=0,
        maximum=LARGEST,
    )
    initial_worker_port: int = setting(9000, BATCHING, "The id of the first worker.", minimum=0)
    worker_start: Literal["auto", "spawn"] = setting(
        "auto",
        BATCHING,
        "auto: fork workers from a process that has imported torch, where that is safe; spawn: never fork.",
    )

    enable_batcher: bool = setting(
        False,
        BATCHER,
        "Batch requests for every model as KServe's batcher does, unless the model says otherwise.",
        variable="MODELSERVER_ENABLE_BATCHER",
        flag="--enable-batcher",
    )
    batcher_max_batch_size: int = setting(
        32,
        BATCHER,
        "Instances in a batch, with enable_batcher.",
        variable="MODELSERVER_MAX_BATCHSIZE",
        flag="--max-batchsize",
        minimum=1,
        maximum=LARGEST,
    )
    batcher_max_latency: int = setting(
        500,
        BATCHER,
        "Milliseconds that the first instance of a batch waits for more, with enable_batcher.",
        variable="MODELSERVER_MAX_LATENCY",
        flag="--max-latency",
        minimum=1,
        maximum=LARGEST,
    )
    batcher_timeout: int = setting(
        60,
        BATCHER,
        "Seconds until a request is answered with 504, with enable_batcher.",
        variable="MODELSERVER_BATCHER_TIMEOUT",
        flag="--batcher-timeout",
        minimum=1,
        maximum=LARGEST,
    )

    default_response_timeout: int = setting(
        120, LIMITS, "Seconds that a worker may take for one batch.", minimum=1
    )
    default_startup_timeout: int = setting(
        120, LIMITS, "Seconds that a worker may take to load its model.", minimum=1
    )
    unregister_model_timeout: int = setting(
        120,
        LIMITS,
        "Seconds that an unregistered model has to answer waiting requests and stop its workers.",
        minimum=0,
    )
    shadow_bodies: int = setting(
        0,
        LIMITS,
        "Bytes of request and answers that are kept where the answer of a shadow differs; 0 keeps none.",
        minimum=0,
        maximum=LARGEST,
    )
    silence_timeout: float = setting(
        30.0, LIMITS, "Seconds without a sign of life before a worker is replaced.", minimum=0.1
    )
    drain_timeout: float = setting(
        30.0, LIMITS, "Seconds that accepted requests have to finish after SIGTERM.", minimum=0
    )
    max_request_size: int = setting(6553500, LIMITS, "The largest request body, in bytes.", minimum=1)
    max_incoming_bytes: int = setting(
        512 * 1024 * 1024,
        LIMITS,
        "Bytes of incoming requests, over all connections at once; a single request is always accepted.",
        minimum=1,
    )
    max_outgoing_bytes: int = setting(
        512 * 1024 * 1024,
        LIMITS,
        "Bytes of answers that wait for clients, over all connections at once; a single answer always may.",
        minimum=1,
    )
    max_request_instances: int = setting(
        10_000,
        LIMITS,
        "Instances or rows of one V1 or V2 request; many more would hold up other requests.",
        minimum=1,
    )
    max_request_tensors: int = setting(
        4096, LIMITS, "Inputs of one V2 request, its outputs, and all parameters together.", minimum=1
    )
    max_response_size: int = setting(6553500, LIMITS, "The largest prediction, in bytes.", minimum=1)

    expose_errors: Literal["auto", "true", "false"] = setting(
        "auto",
        REQUESTS,
        "Tell clients why a handler failed: exception, line, hint and request id; auto: on loopback. Unless "
        "it is false, a 404 of a model says which models there are.",
        torchserve="false",
    )
    decode_input_request: bool = setting(
        True, REQUESTS, "Pass JSON and text to handlers decoded; false: as bytes."
    )
    default_service_handler: str | None = setting(
        None, REQUESTS, "The handler (file.py:function) of archives that name none."
    )
    openai_api: bool = setting(
        True, REQUESTS, "Serve OpenAI's API: /v1/chat/completions, /v1/embeddings and others."
    )
    service_envelope: Literal["body", "json", "kserve", "kservev2"] | None = setting(
        None, REQUESTS, "The request envelope of all models."
    )
    limit_max_image_pixels: bool = setting(True, REQUESTS, "Refuse images with suspiciously many pixels.")
    blacklist_env_vars: re.Pattern[str] | None = setting(
        None, REQUESTS, "Environment variables hidden from workers: names that match fully."
    )
    python: str | None = setting(
        None,
        REQUESTS,
        (
            "The Python that runs workers; by default the server's own. modelserver need not be installed "
            "there, but msgspec, orjson, python-multipart and PyYAML must be; 3.10 or newer."
        ),
        variable=None,
    )
    ts_open_inference_protocol: bool = setting(
        True,
        REQUESTS,
        (
            "Serve the Open Inference Protocol's health and metadata, and its gRPC service; "
            "TS_OPEN_INFERENCE_PROTOCOL=oip is always read."
        ),
        variable="TS_OPEN_INFERENCE_PROTOCOL",
        torchserve="false",
    )
    ts_header_key_sequence_id: str = setting(
        "ts_request_sequence_id",
        REQUESTS,
        "The request header that names a sequence.",
        variable="TS_HEADER_KEY_SEQUENCE_ID",
    )
    ts_header_key_sequence_start: str = setting(
        "ts_request_sequence_start",
        REQUESTS,
        "The request header that starts a sequence.",
        variable="TS_HEADER_KEY_SEQUENCE_START",
    )
    ts_header_key_sequence_end: str = setting(
        "ts_request_sequence_end",
        REQUESTS,
        "The response header that ends sequences.",
        variable="TS_HEADER_KEY_SEQUENCE_END",
    )
