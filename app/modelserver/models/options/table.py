"""Every option of a model, each a row: a field that a registration or model-config.yaml can set.

``python -m docs.model_config`` generates docs/model-config.md from the rows (reference 9, and the server's
own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from modelserver.engine.demand import Demand
from modelserver.engine.policy_names import POLICIES
from modelserver.models.options.option import OptionGroup, options_of
from modelserver.models.options.signature import Signature
from modelserver.models.options.signature import signature as signature_values
from modelserver.models.options.values import (
    LARGEST_SIZE,
    anything,
    boolean,
    by_version,
    device_list,
    flag_or_auto,
    mapping,
    one_of,
    path,
    raised_to,
    resources,
    whole,
)

# Per process; more would only wait for each other.
MOST_THREADS = 1024
# When workers are started: at the registration, or for the first request.
LOADS = AT_START, ON_DEMAND = "at-start", "on-demand"
# The parallel types whose workers have several processes; with ``pp`` only the first gets the batches.
RANKED = ("pp", "tp", "pptp")

# The groups of keys in the order of the page; neighbours with the same title share a table.
WORKERS, BATCHES, TIMES, DEVICES, CLUSTER, WAYS, SEQUENCES, ENVIRONMENT, PROTOCOL, FURTHER = map(
    OptionGroup, range(10)
)


@dataclass(frozen=True, slots=True)
class Batcher:
    """The ``batcher:`` block of KServe: latency in ms, timeout in s. ``fields_set``: those that it has."""

    max_batch_size: int = 32
    max_latency: int = 500
    timeout: int = 60
    fields_set: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Torchrun:
    """The ``torchrun:`` block: a worker is ``processes`` processes, of ``threads`` threads each if given."""

    processes: int = 1
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What a registration and model-config.yaml can set; None means not set.

    Timeouts are in s, other times in ms, ``max_worker_memory`` is in bytes.
    """

    batch_size: int | None = BATCHES(
        "batchSize",
        raised_to(1),
        "The most instances in a batch.",
        requested="The most instances in a batch; by default the archive's, else 1.",
        schema={"example": 8},
        unset=(-1, 0),
        kserve="max_batch_size",
        changed="The most instances in a batch from now on; the number of workers stays unless given.",
    )
    max_batch_delay: int | None = BATCHES(
        "maxBatchDelay",
        whole(0),
        "Milliseconds that the oldest instance waits for a batch to fill; 0 counts as not set.",
        requested="Milliseconds that the oldest instance waits for a fuller batch.",
        unset=(-1, -100),
        kserve="max_latency",
        changed="Milliseconds that the oldest instance may wait, from now on.",
    )
    batch_policy: str | None = BATCHES(
        "batchPolicy",
        one_of(*POLICIES),
        "When a batch is sent ([Batching](batching.md)).",
        own=True,
        requested="When a waiting batch is sent: window when full or after the delay, greedy at once, "
        "adaptive at once unless waiting pays off. By default window if a delay is given, else adaptive.",
        changed="When a batch is sent, from now on: window, greedy or adaptive.",
        setting="batch_policy",
    )
    response_timeout: int | None = TIMES(
        "responseTimeout",
        whole(1),
        "Seconds for one batch; then the worker is replaced.",
        requested="Seconds that a worker may take for a batch.",
        unset=(-1,),
        changed="Seconds that a worker may take for a batch, from now on.",
        setting="default_response_timeout",
    )
    min_workers: int | None = WORKERS(
        "minWorkers",
        raised_to(0),
        "Workers to start. Unless `load` is `on-demand`, it counts only with a `maxWorkers` that is not "
        "below it, and 0 counts as 1.",
        default="",
        requested="The minimum number of workers.",
        parameter_values=whole(0),
        setting="default_workers_per_model",
        below=("initial_workers",),
    )
    max_workers: int | None = WORKERS(
        "maxWorkers",
        whole(0),
        "The maximum number of workers. Unless `load` is `on-demand`, it counts only with `minWorkers`.",
        default="",
        requested="The maximum number of workers.",
        setting="default_workers_per_model",
        below=("initial_workers",),
    )
    split_instances: str | bool | None = FURTHER(
        "splitInstances",
        flag_or_auto(),
        "whether V1 bodies are split into instances ([Batching](batching.md)).",
        own=True,
        requested="Whether V1 bodies are split into instances: auto by handler, true always, false never.",
        setting="split_instances",
    )
    load: str | None = WORKERS(
        "load",
        one_of(*LOADS),
        "When workers are started: `at-start`, at the registration, or `on-demand`, for the first request "
        "([Many models](many-models.md)).",
        own=True,
        requested="Start workers at once (at-start), or for the first request (on-demand).",
        setting="load",
    )
    route: str | None = WAYS(
        "route",
        path(),
        "A path at which the model answers as below `/predictions/NAME` ([more](asgi.md#a-path-of-its-own)).",
        own=True,
        requested="A path at which the model answers as below /predictions/NAME.",
    )
    idle_timeout: int | None = WORKERS(
        "idleTimeout",
        whole(0),
        "Seconds without a request after which a model that is loaded on demand is parked; 0 is never.",
        own=True,
        requested="Seconds without a request until the model is parked; 0 is never.",
        changed="Seconds without a request until the model is parked; 0 is never.",
        setting="idle_timeout",
    )
    pin: bool | None = WORKERS(
        "pin",
        boolean(),
        "A model that is loaded on demand stays loaded from then on.",
        otherwise=False,
        own=True,
        requested="Stay loaded once it is, with load=on-demand.",
        changed="Stay loaded once it is, with load=on-demand.",
    )
    prewarm: bool | None = WORKERS(
        "prewarm",
        boolean(),
        "A model that is loaded on demand is loaded before the times of the hour or day at which it is used.",
        otherwise=False,
        own=True,
        requested="Load the model before the times of the hour or day at which it is used.",
    )
    autoscale: bool | None = WORKERS(
        "autoscale",
        boolean(),
        "The number of workers follows the load, from `minWorkers` to `maxWorkers` "
        "([Running](operations.md#autoscaling)).",
        own=True,
        requested="Start and stop workers by load, between min_workers and max_workers.",
        changed="Start and stop workers by load, between the bounds.",
        setting="autoscale",
    )
    autoscale_target_wait: int | None = WORKERS(
        "autoscaleTargetWait",
        whole(1),
        "Milliseconds that requests may wait for a worker before more are added, with `autoscale`.",
        own=True,
        requested="Milliseconds that requests may wait for a worker.",
        changed="Milliseconds that requests may wait for a worker.",
        setting="autoscale_target_wait",
        described="autoscaling.targetWait",
    )
    autoscale_up_pause: int | None = WORKERS(
        "autoscaleUpPause",
        whole(100),
        "Milliseconds that such waits must have lasted, with `autoscale`.",
        own=True,
        requested="Milliseconds of longer waits before workers are added.",
        changed="Milliseconds of longer waits before workers are added.",
        setting="autoscale_up_pause",
        described="autoscaling.upPause",
    )
    autoscale_down_pause: int | None = WORKERS(
        "autoscaleDownPause",
        whole(100),
        "Milliseconds that fewer workers must have been enough before one is removed, with `autoscale`.",
        own=True,
        requested="Milliseconds of spare workers before one is removed.",
        changed="Milliseconds of spare workers before one is removed.",
        setting="autoscale_down_pause",
        described="autoscaling.downPause",
    )
    max_worker_memory: int | None = WORKERS(
        "maxWorkerMemory",
        whole(0, LARGEST_SIZE),
        "Bytes of memory that a worker may use before it is replaced "
        "([Running](operations.md#recycling-workers)); 0 is unlimited.",
        own=True,
        requested="Bytes that a worker may use before it is replaced.",
        changed="Bytes that a worker may use before it is replaced.",
        setting="max_worker_memory",
        described="maxWorkerMemory",
    )
    max_worker_requests: int | None = WORKERS(
        "maxWorkerRequests",
        whole(0),
        "Requests that a worker answers before it is replaced; 0 is unlimited.",
        own=True,
        requested="Requests that a worker answers before it is replaced.",
        changed="Requests that a worker answers before it is replaced.",
        setting="max_worker_requests",
        described="maxWorkerRequests",
    )
    worker_threads: int | None = WORKERS(
        "workerThreads",
        whole(0, MOST_THREADS),
        "Threads of each process of a worker, overriding `OMP_NUM_THREADS` in the server's "
        "environment; 0 uses that, or an equal share of the cores.",
        own=True,
        requested="Threads of each worker; 0 is an equal share of the cores.",
        described="workerThreads",
    )
    startup_timeout: int | None = TIMES(
        "startupTimeout",
        whole(1),
        "Seconds for a worker to load the model.",
        requested="Seconds that a worker may take to load the model.",
        unset=(-1,),
        setting="default_startup_timeout",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(CommonOptions):
    """The keys of model-config.yaml, None if not set; ``raw`` is the whole document.

    The ``_ms`` fields are in ms. A ``max_batch_delay`` or ``job_queue_size`` of 0 counts as not set where
    settings are ranked.
    """

    job_queue_size: int | None = BATCHES(
        "jobQueueSize", whole(0), "Requests that may wait; 0 counts as not set.", setting="job_queue_size"
    )
    max_retry_timeout: int | None = TIMES(
        "maxRetryTimeoutInSec", whole(0), "Seconds during which a failing worker is restarted; 0 is never."
    )
    client_timeout_ms: int | None = TIMES(
        "clientTimeoutInMills",
        whole(0),
        "Milliseconds that a request may take in total before it is answered with 504; 0 is unlimited.",
        default="0",
        kserve="timeout",
    )
    device_type: Literal["cpu", "gpu"] | None = DEVICES(
        "deviceType",
        one_of("cpu", "gpu"),
        "`cpu`: workers get no GPU; `gpu` on a machine without one becomes `cpu` with a warning.",
        default="gpu if there is one",
    )
    device_ids: tuple[int, ...] | None = DEVICES(
        "deviceIds",
        device_list(),
        "The GPUs that workers use in turn, from the first; a list with a missing GPU is "
        "ignored with a warning.",
    )
    parallel_type: str | None = DEVICES(
        "parallelType", one_of(*RANKED, "custom", ""), "How a worker spans several GPUs, see below."
    )
    parallel_level: int | None = DEVICES(
        "parallelLevel",
        whole(0),
        "GPUs per worker; counts only with a `parallelType`, and `torchrun` sets it.",
    )
    torchrun: Torchrun | None = DEVICES(
        "torchrun",
        mapping("`{nproc-per-node: N}`"),
        "A worker is N processes, see below; counts only with a `parallelType`.",
        strict=True,
    )
    resources: Demand | str | None = CLUSTER(
        "resources",
        resources(),
        "What each worker, with all its processes, needs on a cluster ([Workers on other "
        "machines](cluster.md)): `num_cpus`, `num_gpus`, `memory` in bytes, `custom` resources, a "
        "`label_selector`; or `local`: its workers stay on the server's machine.",
        default="`{num_cpus: 1}`, with `deviceType: gpu` a GPU, too, or as many as `parallelLevel`",
        own=True,
        setting="worker_resources",
    )
    placement: str | None = CLUSTER(
        "placement",
        one_of("spread", "pack"),
        "`spread`: workers on different machines as far as possible; `pack`: on as few as possible. If a "
        "worker has several processes, this places its processes.",
        default="`spread`; `pack` for workers of several processes",
        own=True,
    )
    idempotent: bool | None = CLUSTER(
        "idempotent",
        boolean(),
        "Requests may run twice: if a worker's machine is lost, its requests are tried again once.",
        own=True,
    )
    use_job_ticket: bool | None = WAYS(
        "useJobTicket",
        boolean(),
        "A request is accepted only if a worker is free, otherwise it gets 503 at once.",
    )
    continuous_batching: bool | None = WAYS(
        "continuousBatching", boolean(), "Requests join and leave the batch between two calls of the handler."
    )
    async_communication: bool | None = WAYS(
        "asyncCommunication",
        boolean(),
        "`handle` is a coroutine, called for each request separately and at once.",
    )
    service_envelope: Literal["none", "body", "json", "kserve", "kservev2"] | None = WAYS(
        "serviceEnvelope",
        one_of("none", "body", "json", "kserve", "kservev2"),
        "The envelope for this model's handler ([envelopes](torchserve-handlers.md#envelopes)), or `none`.",
        own=True,
        setting="service_envelope",
    )
    traffic: Mapping[str, Any] | None = WAYS(
        "traffic",
        by_version('`{"1.0": 90, "2.0": 10}`'),
        "Traffic between the versions ([Rollouts](rollouts.md)), set when this one is registered, if all "
        "versions that it names are there.",
        own=True,
    )
    sequence_batching: bool | None = SEQUENCES(
        "sequenceBatching", boolean(), "Requests of one sequence are served in order by one worker."
    )
    sequence_max_idle_ms: int | None = SEQUENCES(
        "sequenceMaxIdleMSec",
        whole(0),
        "Milliseconds without a request after which a sequence ends; 0 counts as one minute.",
    )
    sequence_timeout_ms: int | None = SEQUENCES(
        "sequenceTimeoutMSec", whole(0), "Milliseconds that a sequence may last; 0 is unlimited."
    )
    max_num_sequence: int | None = SEQUENCES("maxNumSequence", raised_to(1), "The most concurrent sequences.")
    max_sequence_job_queue_size: int | None = SEQUENCES(
        "maxSequenceJobQueueSize", raised_to(1), "Requests that may wait per sequence."
    )
    use_venv: bool | None = ENVIRONMENT(
        "useVenv", boolean(), "Workers run in the model's own virtual environment, see below."
    )
    signature: Signature | None = PROTOCOL(
        "signature",
        signature_values(),
        "The model's inputs and outputs ([Open Inference](open-inference.md)), for its metadata "
        "and for checking requests.",
        own=True,
    )
    batcher: Batcher | None = FURTHER(
        "batcher",
        anything("`{maxBatchSize: 32, maxLatency: 500, timeout: 60}`"),
        "KServe's block ([Batching](batching.md)).",
        strict=True,
    )
    raw: Mapping[str, Any] = field(default_factory=dict)


OPTIONS = options_of(ModelConfig)
"""All rows by the names of their fields."""
CHANGEABLE = {name: row for name, row in OPTIONS.items() if row.changed}
"""Those that can be changed while the model runs."""
CONFIG_KEYS = {row.key: row for row in sorted(OPTIONS.values(), key=lambda row: row.group)}
"""All rows by key, in the order of the page of keys."""

_OF_HANDLERS = "handler pt2 optimize precision warmup micro_batching onnx deepspeed pippy dali"
HANDLER_KEYS = tuple(_OF_HANDLERS.split())
"""Keys for handlers, which the server passes on unchanged."""

KNOWN = frozenset((*CONFIG_KEYS, *HANDLER_KEYS))

_OF_RENDEZVOUS = "rdzv-backend rdzv-endpoint rdzv-conf monitor-interval max-restarts"
TORCHRUN_KEYS = ("nproc-per-node", "OMP_NUMBER_THREADS", "nnodes", "node-rank", *_OF_RENDEZVOUS.split())
"""The known keys of a ``torchrun`` block; those of its rendezvous have no effect."""
