"""Every option of a model: one row each, which is a field of what a registration or model-config.yaml says.

``python -m modelserver.options.reference`` makes docs/model-config.md of the rows (reference 9, and the
server's own).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - helpers read annotations at run time
from dataclasses import dataclass, field
from typing import Any, Literal

from modelserver.options.option import option, options_of
from modelserver.options.signature import Signature
from modelserver.options.signature import signature as signature_values
from modelserver.options.values import (
    LARGEST_SIZE,
    anything,
    boolean,
    device_list,
    flag_or_auto,
    mapping,
    one_of,
    raised_to_one,
    whole,
)

# Of one process; more would only wait for each other.
MOST_THREADS = 1024
BATCH_POLICIES = ("adaptive", "greedy", "window")
# The parallel types whose workers are several processes; of ``pp`` only the first one gets the batches.
RANKED = ("pp", "tp", "pptp")

# The groups of keys in the order of the page, where neighbours of one title are one table.
WORKERS, BATCHES, TIMES, DEVICES, WAYS, SEQUENCES, ENVIRONMENT, PROTOCOL, FURTHER = range(9)
TITLES = (
    *("Workers and batches", "Workers and batches", "Times", "Devices and processes", "Ways of serving"),
    *("Sequences", "Environment", "Open Inference Protocol", "Further forms"),
)


@dataclass(frozen=True, slots=True)
class HandlerKey:
    """One key that built-in handlers read, and any handler may: the server hands it on untouched."""

    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class Batcher:
    """The ``batcher:`` block of KServe: latency in ms, timeout in s. ``given`` names the fields it sets."""

    max_batch_size: int = 32
    max_latency: int = 500
    timeout: int = 60
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Torchrun:
    """The ``torchrun:`` block: a worker is ``processes`` processes, of ``threads`` threads each if given."""

    processes: int = 1
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a registration and model-config.yaml may say, None where one does not.

    Timeouts are in s, other times in ms, ``max_worker_memory`` is in bytes.
    """

    batch_size: int | None = option(
        "batchSize",
        BATCHES,
        raised_to_one(),
        "The most instances of a batch.",
        asked="Instances in a batch at most; by default the archive's, else 1.",
        schema={"example": 8},
        unset=(-1, 0),
        kserve="max_batch_size",
        changed="Instances of a batch from now on; workers stay unless named.",
    )
    max_batch_delay: int | None = option(
        "maxBatchDelay",
        BATCHES,
        whole(0),
        "Milliseconds that the oldest instance waits for a batch to fill; 0 counts as not set.",
        asked="Milliseconds the oldest instance waits for a fuller batch.",
        unset=(-1, -100),
        kserve="max_latency",
        changed="Milliseconds that the oldest may wait, from now on.",
    )
    batch_policy: str | None = option(
        "batchPolicy",
        BATCHES,
        one_of(*BATCH_POLICIES),
        "When a batch goes ([Batching](batching.md)).",
        own=True,
        asked="When a waiting batch goes: window when full or after the delay, greedy at once, adaptive at "
        "once unless waiting pays. By default window when a delay is given, else adaptive.",
        schema={"enum": ["window", "greedy", "adaptive"]},
        changed="When a batch goes, from now on: window, greedy or adaptive.",
        setting="batch_policy",
    )
    response_timeout: int | None = option(
        "responseTimeout",
        TIMES,
        whole(1),
        "Seconds for one batch; then the worker is replaced.",
        asked="Seconds a worker may take for a batch.",
        unset=(-1,),
        changed="Seconds a worker may take for a batch, from now on.",
        setting="default_response_timeout",
    )
    min_workers: int | None = option(
        "minWorkers",
        WORKERS,
        raised_to_one(),
        "Workers that are started; counts only with a `maxWorkers` that is not below it.",
        default="",
        asked="Workers at least.",
        asked_values=whole(0),
        setting="default_workers_per_model",
        below=("initial_workers",),
    )
    max_workers: int | None = option(
        "maxWorkers",
        WORKERS,
        whole(0),
        "The most workers; counts only with `minWorkers`.",
        default="",
        asked="Workers at most.",
        setting="default_workers_per_model",
        below=("initial_workers",),
    )
    split_instances: str | bool | None = option(
        "splitInstances",
        FURTHER,
        flag_or_auto(),
        "whether V1 bodies are cut into instances ([Batching](batching.md)).",
        own=True,
        asked="Whether the instances of a V1 body are split: auto by the handler, true always, false never.",
        schema={"enum": ["auto", "true", "false"]},
        setting="split_instances",
    )
    autoscale: bool | None = option(
        "autoscale",
        WORKERS,
        boolean(),
        "The number of workers follows the load, from `minWorkers` to `maxWorkers` "
        "([Running](operations.md#autoscaling)).",
        own=True,
        asked="Start and end workers by load, between min_workers and max_workers.",
        changed="Start and end workers by load, between the bounds.",
        setting="autoscale",
    )
    autoscale_target_wait: int | None = option(
        "autoscaleTargetWait",
        WORKERS,
        whole(1),
        "Milliseconds that requests may wait for a worker before there are more, with `autoscale`.",
        own=True,
        asked="Milliseconds that requests may wait for a worker.",
        changed="Milliseconds that requests may wait for a worker.",
        setting="autoscale_target_wait",
        described="autoscaling.targetWait",
    )
    autoscale_up_pause: int | None = option(
        "autoscaleUpPause",
        WORKERS,
        whole(100),
        "Milliseconds that this must have lasted, with `autoscale`.",
        own=True,
        asked="Milliseconds of longer waits before there are more workers.",
        changed="Milliseconds of longer waits until there are more workers.",
        setting="autoscale_up_pause",
        described="autoscaling.upPause",
    )
    autoscale_down_pause: int | None = option(
        "autoscaleDownPause",
        WORKERS,
        whole(100),
        "Milliseconds that fewer workers must have been enough until there are fewer, with `autoscale`.",
        own=True,
        asked="Milliseconds of spare workers before there are fewer.",
        changed="Milliseconds of spare workers until there are fewer.",
        setting="autoscale_down_pause",
        described="autoscaling.downPause",
    )
    max_worker_memory: int | None = option(
        "maxWorkerMemory",
        WORKERS,
        whole(0, LARGEST_SIZE),
        "Bytes of memory that a worker may occupy until a fresh one takes its place "
        "([Running](operations.md#recycling-workers)); 0 is without limit.",
        own=True,
        asked="Bytes a worker may occupy until a fresh one takes its place.",
        changed="Bytes a worker may occupy until it is replaced.",
        setting="max_worker_memory",
        described="maxWorkerMemory",
    )
    max_worker_requests: int | None = option(
        "maxWorkerRequests",
        WORKERS,
        whole(0),
        "Requests that a worker answers until a fresh one takes its place; 0 is without limit.",
        own=True,
        asked="Requests a worker answers until a fresh one takes its place.",
        changed="Requests a worker answers until it is replaced.",
        setting="max_worker_requests",
        described="maxWorkerRequests",
    )
    worker_threads: int | None = option(
        "workerThreads",
        WORKERS,
        whole(0, MOST_THREADS),
        "Threads that each process of a worker computes with, whatever `OMP_NUM_THREADS` of the server's "
        "environment says; 0 is that, or an equal share of the cores.",
        own=True,
        asked="Threads of each worker; 0 is an equal share of the cores.",
        described="workerThreads",
    )
    startup_timeout: int | None = option(
        "startupTimeout",
        TIMES,
        whole(1),
        "Seconds for a worker to load the model.",
        asked="Seconds a worker may take to load the model.",
        unset=(-1,),
        setting="default_startup_timeout",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Asked):
    """The keys of model-config.yaml, None where it does not set them; ``raw`` is the whole document.

    The ``_ms`` fields are in ms. A ``max_batch_delay`` or ``job_queue_size`` of 0 counts as not set where
    settings are ranked.
    """

    job_queue_size: int | None = option(
        "jobQueueSize",
        BATCHES,
        whole(0),
        "Requests that may wait; 0 counts as not set.",
        setting="job_queue_size",
    )
    max_retry_timeout: int | None = option(
        "maxRetryTimeoutInSec",
        TIMES,
        whole(0),
        "Seconds during which a failing worker is started again and again; 0 is never.",
    )
    client_timeout_ms: int | None = option(
        "clientTimeoutInMills",
        TIMES,
        whole(0),
        "Milliseconds that a request may take in all, then it is answered 504; 0 is without limit.",
        default="0",
        kserve="timeout",
    )
    device_type: Literal["cpu", "gpu"] | None = option(
        "deviceType",
        DEVICES,
        one_of("cpu", "gpu"),
        "`cpu`: workers get no GPU; `gpu` without any becomes `cpu` with a warning.",
        default="gpu where there is one",
    )
    device_ids: tuple[int, ...] | None = option(
        "deviceIds",
        DEVICES,
        device_list(),
        "The GPUs that workers take in turn, from the first; a list with a GPU that is not there is "
        "left out with a warning.",
    )
    parallel_type: str | None = option(
        "parallelType",
        DEVICES,
        one_of(*RANKED, "custom", ""),
        "How one worker spans several GPUs, see below.",
    )
    parallel_level: int | None = option(
        "parallelLevel",
        DEVICES,
        whole(0),
        "GPUs of one worker; counts only with a `parallelType`, and `torchrun` sets it.",
    )
    torchrun: Torchrun | None = option(
        "torchrun",
        DEVICES,
        mapping("`{nproc-per-node: N}`"),
        "A worker is N processes, see below; counts only with a `parallelType`.",
        strict=True,
    )
    use_job_ticket: bool | None = option(
        "useJobTicket",
        WAYS,
        boolean(),
        "A request is taken in only if a worker is free, else answered 503 at once.",
    )
    continuous_batching: bool | None = option(
        "continuousBatching",
        WAYS,
        boolean(),
        "Requests join and leave the batch between two calls of the handler.",
    )
    async_communication: bool | None = option(
        "asyncCommunication",
        WAYS,
        boolean(),
        "`handle` is a coroutine, requests go to it one by one and at once.",
    )
    service_envelope: Literal["none", "body", "json", "kserve", "kservev2"] | None = option(
        "serviceEnvelope",
        WAYS,
        one_of("none", "body", "json", "kserve", "kservev2"),
        "The envelope of this model's handler ([Handlers](handlers.md#envelopes)), or `none`.",
        own=True,
        setting="service_envelope",
    )
    sequence_batching: bool | None = option(
        "sequenceBatching",
        SEQUENCES,
        boolean(),
        "Requests of one sequence are served in order by one worker.",
    )
    sequence_max_idle_ms: int | None = option(
        "sequenceMaxIdleMSec",
        SEQUENCES,
        whole(0),
        "Milliseconds without a request after which a sequence ends; 0 counts as a minute.",
    )
    sequence_timeout_ms: int | None = option(
        "sequenceTimeoutMSec",
        SEQUENCES,
        whole(0),
        "Milliseconds that a sequence may last; 0 is without limit.",
    )
    max_num_sequence: int | None = option(
        "maxNumSequence", SEQUENCES, raised_to_one(), "Sequences at a time."
    )
    max_sequence_job_queue_size: int | None = option(
        "maxSequenceJobQueueSize",
        SEQUENCES,
        raised_to_one(),
        "Requests of one sequence that may wait.",
    )
    use_venv: bool | None = option(
        "useVenv",
        ENVIRONMENT,
        boolean(),
        "Workers run in a virtual environment of the model's own, see below.",
    )
    signature: Signature | None = option(
        "signature",
        PROTOCOL,
        signature_values(),
        "The model's inputs and outputs ([Open Inference](open-inference.md)): what its metadata says, "
        "and what requests must keep to.",
        own=True,
    )
    batcher: Batcher | None = option(
        "batcher",
        FURTHER,
        anything("`{maxBatchSize: 32, maxLatency: 500, timeout: 60}`"),
        "KServe's block ([Batching](batching.md)).",
        strict=True,
    )
    raw: Mapping[str, Any] = field(default_factory=dict)


OPTIONS = options_of(ModelConfig)
"""All rows by the names of their fields."""
CHANGEABLE = {name: row for name, row in OPTIONS.items() if row.changed}
"""Those that may change while the model runs."""
CONFIG_KEYS = {row.key: row for row in sorted(OPTIONS.values(), key=lambda row: row.group)}
"""All rows by key, in the order of the page of keys."""

HANDLER_KEYS: dict[str, HandlerKey] = {
    key.name: key
    for key in (
        HandlerKey("handler", "Settings of the handler: whatever it wants to find there."),
        HandlerKey(
            "pt2",
            "`{compile: {enable: true, backend: inductor, …}}`: `torch.compile` with these arguments; "
            "`{export: {aot_compile: true}}`: the serialized file is a `.so` that AOTInductor compiled. "
            "Older forms, with a warning: the name of a backend, or arguments without `compile`.",
        ),
        HandlerKey("optimize", "`auto` or `off`, also under `handler` ([Handlers](handlers.md))."),
        HandlerKey("precision", "`fp32` or `bf16`, also under `handler` ([Handlers](handlers.md))."),
        HandlerKey("warmup", "`true`, `false` or `{shape: […]}`, also under `handler`."),
        HandlerKey(
            "micro_batching",
            "`{micro_batch_size: N, parallelism: {preprocess: N, inference: N, postprocess: N}}`, for "
            "handlers that use micro batching.",
        ),
        HandlerKey("onnx", "For handlers of ONNX models."),
        HandlerKey("deepspeed", "`{config: FILE, checkpoint: FILE}`, for handlers that use DeepSpeed."),
        HandlerKey("pippy", "For handlers that use pipeline parallelism."),
        HandlerKey("dali", "For handlers that use DALI."),
    )
}

KNOWN = frozenset((*CONFIG_KEYS, *HANDLER_KEYS))

# The keys of a ``torchrun`` block that are understood; those without effect are of its rendezvous.
TORCHRUN_KEYS: dict[str, str] = {
    "nproc-per-node": "Processes of one worker; 1 unless given.",
    "OMP_NUMBER_THREADS": "Threads that each process computes with; its share of the cores unless given.",
    "nnodes": "1: a worker lives on one machine; more are refused.",
    "node-rank": "0; others are refused.",
    "rdzv-backend": "No effect: the processes of one machine find each other without.",
    "rdzv-endpoint": "No effect.",
    "rdzv-conf": "No effect.",
    "monitor-interval": "No effect: the end of a process is noticed at once.",
    "max-restarts": "No effect: the worker is started again as a whole.",
}
