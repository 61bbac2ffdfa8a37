"""The first settings of the server: its addresses, its models, and how they are served, a row each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modelserver.settings.address import Address
from modelserver.settings.key import (
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

    from modelserver.settings.model_defaults import ModelTable
    from modelserver.settings.values import ModelToLoad

_INFERENCE = Address("http", "127.0.0.1", 8080)
_MANAGEMENT = Address("http", "127.0.0.1", 8081)
_METRICS = Address("http", "127.0.0.1", 8082)
ANY_URL = (re.compile("file://.*|http(s)?://.*", re.IGNORECASE),)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Those that models and requests are served by; the others are beside them in ``Settings``."""

    inference_address: Address = setting(_INFERENCE, ADDRESSES, "Where predictions are served.")
    management_address: Address = setting(
        _MANAGEMENT, ADDRESSES, "Where models are managed; off loopback tokens are asked for."
    )
    metrics_address: Address = setting(_METRICS, ADDRESSES, "Where metrics are read.")
    frontend_processes: Literal["auto"] | int = setting(
        "auto",
        ADDRESSES,
        "Processes that take in requests; 1: the server itself; auto: one for 8 cores, at most 4.",
        minimum=1,
        maximum=64,
    )

    model_store: Path | None = setting(
        None,
        MODELS,
        "The folder of archives that models are loaded from.",
        kind=Kind.DIRECTORY,
        flag="--model-store",
    )
    workflow_store: Path | None = setting(
        None,
        MODELS,
        "The folder of workflow archives, for workflows, of which there are none.",
        category="N",
        flag="--workflow-store",
    )
    load_models: tuple[ModelToLoad, ...] = setting(
        (),
        MODELS,
        "What is loaded at start: archives, name=archive pairs, or all of the model store.",
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
        None, MODELS, "The state to restore, as a snapshot wrote it.", kind=Kind.JSON, variable=None
    )
    allowed_urls: tuple[re.Pattern[str], ...] = setting(
        ANY_URL,
        MODELS,
        "URLs that models may be loaded from; private targets only where this key is set.",
        kind=Kind.URL_PATTERNS,
    )
    use_env_allowed_urls: bool = setting(
        False, MODELS, "Let TS_ALLOWED_URLS set allowed_urls too.", variable=None
    )
    install_py_dep_per_model: bool = setting(
        False, MODELS, "Install the requirements file of an archive with pip."
    )

    batch_policy: Literal["adaptive", "greedy", "window"] | None = setting(
        None,
        BATCHING,
        "When a batch goes, for models that do not say; empty: window where a delay is given, else adaptive.",
        torchserve="window",
    )
    split_instances: Literal["auto", "true", "false"] = setting(
        "auto", BATCHING, "Split V1 and V2 bodies into instances for custom handlers too.", torchserve="false"
    )
    isolate_failures: bool = setting(
        True,
        BATCHING,
        "Run a failed batch again in parts, so that only the guilty request fails.",
        torchserve="false",
    )
    job_queue_size: int = setting(100, BATCHING, "Requests that may wait for one model version.", minimum=1)
    job_queue_bytes: int = setting(
        512 * 1024 * 1024, BATCHING, "Bytes of request bodies that may wait for one model version.", minimum=1
    )
    default_workers_per_model: int = setting(
        0,
        BATCHING,
        "Workers of a model that does not say; 0: one per GPU or CPU at start, none when registered.",
        minimum=0,
    )
    autoscale: bool = setting(
        False, BATCHING, "Start and end workers by load, between a model's minWorkers and maxWorkers."
    )
    autoscale_target_wait: int = setting(
        100,
        BATCHING,
        "Milliseconds that requests may wait for a worker before there are more, with autoscale.",
        minimum=1,
        maximum=LARGEST,
    )
    autoscale_up_pause: int = setting(
        2000,
        BATCHING,
        "Milliseconds that this must have lasted, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    )
    autoscale_down_pause: int = setting(
        60_000,
        BATCHING,
        "Milliseconds that fewer workers must have been enough before there are fewer, with autoscale.",
        minimum=100,
        maximum=LARGEST,
    )
    max_worker_memory: int = setting(
        0,
        BATCHING,
        "Bytes of memory that a worker may occupy until a fresh one takes its place; 0: without limit.",
        minimum=0,
    )
    max_worker_requests: int = setting(
        0,
        BATCHING,
        "Requests that a worker answers until a fresh one takes its place; 0: without limit.",
        minimum=0,
        maximum=LARGEST,
    )
    initial_worker_port: int = setting(9000, BATCHING, "The id of the first worker.", minimum=0)
    worker_start: Literal["auto", "spawn"] = setting(
        "auto",
        BATCHING,
        "auto: fork workers from a process that has imported torch, where that is safe; spawn: never.",
    )

    enable_batcher: bool = setting(
        False,
        BATCHER,
        "Gather requests for every model as KServe's batcher does, unless it says otherwise itself.",
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
        "Milliseconds that the first instance of a batch waits for others, with enable_batcher.",
        variable="MODELSERVER_MAX_LATENCY",
        flag="--max-latency",
        minimum=1,
        maximum=LARGEST,
    )
    batcher_timeout: int = setting(
        60,
        BATCHER,
        "Seconds until a request is answered 504, with enable_batcher.",
        variable="MODELSERVER_BATCHER_TIMEOUT",
        flag="--batcher-timeout",
        minimum=1,
        maximum=LARGEST,
    )

    default_response_timeout: int = setting(
        120, LIMITS, "Seconds a worker may take for one batch.", minimum=1
    )
    default_startup_timeout: int = setting(
        120, LIMITS, "Seconds a worker may take to load its model.", minimum=1
    )
    unregister_model_timeout: int = setting(
        120,
        LIMITS,
        "Seconds that a model that is unregistered has to answer what waits for it and to end its workers.",
        minimum=0,
    )
    silence_timeout: float = setting(
        30.0, LIMITS, "Seconds without a sign of life after which a worker is replaced.", minimum=0.1
    )
    drain_timeout: float = setting(
        30.0, LIMITS, "Seconds that accepted requests have to finish after SIGTERM.", minimum=0
    )
    max_request_size: int = setting(6553500, LIMITS, "Bytes of the largest request body.", minimum=1)
    max_incoming_bytes: int = setting(
        512 * 1024 * 1024,
        LIMITS,
        "Bytes of requests that may be coming in at one time, over all connections; one request always may.",
        minimum=1,
    )
    max_request_instances: int = setting(
        10_000,
        LIMITS,
        "Instances or rows of one V1 or V2 request; to take in many more holds up other requests.",
        minimum=1,
    )
    max_request_tensors: int = setting(
        4096,
        LIMITS,
        "Inputs of one V2 request, its outputs, and the parameters of all of them together.",
        minimum=1,
    )
    max_response_size: int = setting(6553500, LIMITS, "Bytes of the largest prediction.", minimum=1)

    expose_errors: Literal["auto", "true", "false"] = setting(
        "auto",
        REQUESTS,
        "Answer failures of handlers with exception, line, hint and request id; auto: on loopback.",
        torchserve="false",
    )
    decode_input_request: bool = setting(
        True, REQUESTS, "Hand JSON and text to handlers decoded; false: as bytes."
    )
    default_service_handler: str | None = setting(
        None, REQUESTS, "The handler (file.py:function) of archives that name none."
    )
    service_envelope: Literal["body", "json", "kserve", "kservev2"] | None = setting(
        None, REQUESTS, "The request envelope of all models."
    )
    limit_max_image_pixels: bool = setting(True, REQUESTS, "Refuse images with suspiciously many pixels.")
    blacklist_env_vars: re.Pattern[str] | None = setting(
        None, REQUESTS, "Environment variables that workers do not see: names that match fully."
    )
    python: str | None = setting(
        None,
        REQUESTS,
        "The Python that runs workers; the server's own unless given. modelserver need not be installed "
        "there, but msgspec, orjson, python-multipart and PyYAML; 3.10 or newer.",
        variable=None,
    )
    ts_open_inference_protocol: bool = setting(
        True,
        REQUESTS,
        "Serve the Open Inference Protocol's health and metadata, and its gRPC service; "
        "TS_OPEN_INFERENCE_PROTOCOL=oip is always read.",
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
