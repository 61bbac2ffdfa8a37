"""Every key of model-config.yaml: one row each (reference 9, and the server's own).

``python -m modelserver.options.reference`` makes docs/model-config.md of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from modelserver.options.signature import signature
from modelserver.options.values import (
    LARGEST_SIZE,
    Values,
    boolean,
    device_list,
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


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key that the server reads.

    ``field`` is that of ``ModelConfig``. ``above`` and ``below`` are what ranks higher and lower, in the
    words of a user: a parameter of the registration, ``models=``, a key of config.properties.
    ``strict``: what cannot be meant is refused, instead of left out with a warning as TorchServe does.
    """

    group: str
    name: str
    field: str
    values: Values
    default: str
    summary: str
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True)
class HandlerKey:
    """One key that built-in handlers read, and any handler may: the server hands it on untouched."""

    name: str
    summary: str


WORKERS = "Workers and batches"
TIMES = "Times"
DEVICES = "Devices and processes"
WAYS = "Ways of serving"
SEQUENCES = "Sequences"
ENVIRONMENT = "Environment"
PROTOCOL = "Open Inference Protocol"
MODELS = "`models=`"

CONFIG_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            WORKERS,
            "minWorkers",
            "min_workers",
            raised_to_one(),
            "",
            "Workers that are started; counts only with a `maxWorkers` that is not below it.",
            ("`min_workers`",),
            ("`initial_workers`", MODELS, "`default_workers_per_model`"),
        ),
        ConfigKey(
            WORKERS,
            "maxWorkers",
            "max_workers",
            whole(0),
            "",
            "The most workers; counts only with `minWorkers`.",
            ("`max_workers`",),
            ("`initial_workers`", MODELS, "`default_workers_per_model`"),
        ),
        ConfigKey(
            WORKERS,
            "autoscale",
            "autoscale",
            boolean(),
            "false",
            "The number of workers follows the load, from `minWorkers` to `maxWorkers` "
            "([Running](operations.md#autoscaling)); own.",
            ("`autoscale`",),
            ("`autoscale` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "autoscaleTargetWait",
            "autoscale_target_wait",
            whole(1),
            "100",
            "Milliseconds that requests may wait for a worker before there are more, with `autoscale`; own.",
            ("`autoscale_target_wait`",),
            ("`autoscale_target_wait` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "autoscaleUpPause",
            "autoscale_up_pause",
            whole(100),
            "2000",
            "Milliseconds that this must have lasted, with `autoscale`; own.",
            ("`autoscale_up_pause`",),
            ("`autoscale_up_pause` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "autoscaleDownPause",
            "autoscale_down_pause",
            whole(100),
            "60000",
            "Milliseconds that fewer workers must have been enough until there are fewer, with `autoscale`; "
            "own.",
            ("`autoscale_down_pause`",),
            ("`autoscale_down_pause` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "maxWorkerMemory",
            "max_worker_memory",
            whole(0, LARGEST_SIZE),
            "0",
            "Bytes of memory that a worker may occupy until a fresh one takes its place "
            "([Running](operations.md#recycling-workers)); 0 is without limit; own.",
            ("`max_worker_memory`",),
            ("`max_worker_memory` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "maxWorkerRequests",
            "max_worker_requests",
            whole(0),
            "0",
            "Requests that a worker answers until a fresh one takes its place; 0 is without limit; own.",
            ("`max_worker_requests`",),
            ("`max_worker_requests` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "workerThreads",
            "worker_threads",
            whole(0, MOST_THREADS),
            "0",
            "Threads that each process of a worker computes with, whatever `OMP_NUM_THREADS` of the server's "
            "environment says; 0 is that, or an equal share of the cores; own.",
            ("`worker_threads`",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "batchSize",
            "batch_size",
            raised_to_one(),
            "1",
            "The most instances of a batch.",
            ("`batch_size`", "`max_batch_size`", "`batcher.maxBatchSize`"),
            (MODELS,),
        ),
        ConfigKey(
            WORKERS,
            "maxBatchDelay",
            "max_batch_delay",
            whole(0),
            "100",
            "Milliseconds that the oldest instance waits for a batch to fill; 0 counts as not set.",
            ("`max_batch_delay`", "`max_latency`", "`batcher.maxLatency`"),
            (MODELS,),
        ),
        ConfigKey(
            WORKERS,
            "batchPolicy",
            "batch_policy",
            one_of(*BATCH_POLICIES),
            "",
            "When a batch goes ([Batching](batching.md)); own.",
            ("`batch_policy`",),
            ("`batch_policy` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            WORKERS,
            "jobQueueSize",
            "job_queue_size",
            whole(0),
            "100",
            "Requests that may wait; 0 counts as not set.",
            (),
            ("`job_queue_size`",),
        ),
        ConfigKey(
            TIMES,
            "responseTimeout",
            "response_timeout",
            whole(1),
            "120",
            "Seconds for one batch; then the worker is replaced.",
            ("`response_timeout`",),
            (MODELS, "`default_response_timeout`"),
        ),
        ConfigKey(
            TIMES,
            "startupTimeout",
            "startup_timeout",
            whole(1),
            "120",
            "Seconds for a worker to load the model.",
            ("`startup_timeout`",),
            (MODELS, "`default_startup_timeout`"),
        ),
        ConfigKey(
            TIMES,
            "maxRetryTimeoutInSec",
            "max_retry_timeout",
            whole(0),
            "300",
            "Seconds during which a failing worker is started again and again; 0 is never.",
        ),
        ConfigKey(
            TIMES,
            "clientTimeoutInMills",
            "client_timeout_ms",
            whole(0),
            "0",
            "Milliseconds that a request may take in all, then it is answered 504; 0 is without limit.",
            ("`timeout`", "`batcher.timeout`"),
        ),
        ConfigKey(
            DEVICES,
            "deviceType",
            "device_type",
            one_of("cpu", "gpu"),
            "gpu where there is one",
            "`cpu`: workers get no GPU; `gpu` without any becomes `cpu` with a warning.",
        ),
        ConfigKey(
            DEVICES,
            "deviceIds",
            "device_ids",
            device_list(),
            "",
            "The GPUs that workers take in turn, from the first; a list with a GPU that is not there is "
            "left out with a warning.",
        ),
        ConfigKey(
            DEVICES,
            "parallelType",
            "parallel_type",
            one_of(*RANKED, "custom", ""),
            "",
            "How one worker spans several GPUs, see below.",
        ),
        ConfigKey(
            DEVICES,
            "parallelLevel",
            "parallel_level",
            whole(0),
            "0",
            "GPUs of one worker; counts only with a `parallelType`, and `torchrun` sets it.",
        ),
        ConfigKey(
            DEVICES,
            "torchrun",
            "torchrun",
            mapping("`{nproc-per-node: N}`"),
            "",
            "A worker is N processes, see below; counts only with a `parallelType`.",
            strict=True,
        ),
        ConfigKey(
            WAYS,
            "useJobTicket",
            "use_job_ticket",
            boolean(),
            "false",
            "A request is taken in only if a worker is free, else answered 503 at once.",
        ),
        ConfigKey(
            WAYS,
            "continuousBatching",
            "continuous_batching",
            boolean(),
            "false",
            "Requests join and leave the batch between two calls of the handler.",
        ),
        ConfigKey(
            WAYS,
            "asyncCommunication",
            "async_communication",
            boolean(),
            "false",
            "`handle` is a coroutine, requests go to it one by one and at once.",
        ),
        ConfigKey(
            WAYS,
            "serviceEnvelope",
            "service_envelope",
            one_of("none", "body", "json", "kserve", "kservev2"),
            "",
            "The envelope of this model's handler ([Handlers](handlers.md#envelopes)), or `none`; own.",
            below=("`service_envelope` of config.properties",),
            strict=True,
        ),
        ConfigKey(
            SEQUENCES,
            "sequenceBatching",
            "sequence_batching",
            boolean(),
            "false",
            "Requests of one sequence are served in order by one worker.",
        ),
        ConfigKey(
            SEQUENCES,
            "sequenceMaxIdleMSec",
            "sequence_max_idle_ms",
            whole(0),
            "0",
            "Milliseconds without a request after which a sequence ends; 0 counts as a minute.",
        ),
        ConfigKey(
            SEQUENCES,
            "sequenceTimeoutMSec",
            "sequence_timeout_ms",
            whole(0),
            "0",
            "Milliseconds that a sequence may last; 0 is without limit.",
        ),
        ConfigKey(
            SEQUENCES,
            "maxNumSequence",
            "max_num_sequence",
            raised_to_one(),
            "1",
            "Sequences at a time.",
        ),
        ConfigKey(
            SEQUENCES,
            "maxSequenceJobQueueSize",
            "max_sequence_job_queue_size",
            raised_to_one(),
            "1",
            "Requests of one sequence that may wait.",
        ),
        ConfigKey(
            ENVIRONMENT,
            "useVenv",
            "use_venv",
            boolean(),
            "false",
            "Workers run in a virtual environment of the model's own, see below.",
        ),
        ConfigKey(
            PROTOCOL,
            "signature",
            "signature",
            signature(),
            "",
            "The model's inputs and outputs ([Open Inference](open-inference.md)): what its metadata says, "
            "and what requests must keep to; own.",
            strict=True,
        ),
    )
}

# Read apart from the others: their values have forms of their own.
SPECIAL_KEYS: dict[str, str] = {
    "splitInstances": "`true`, `false` or `auto`: whether V1 bodies are cut into instances "
    "([Batching](batching.md)); own. What cannot be meant is refused. Above it: `split_instances`; "
    "below: `split_instances` of config.properties.",
    "batcher": "`{maxBatchSize: 32, maxLatency: 500, timeout: 60}`: KServe's block "
    "([Batching](batching.md)). What cannot be meant is refused.",
}

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

KNOWN = frozenset((*CONFIG_KEYS, *SPECIAL_KEYS, *HANDLER_KEYS))

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
