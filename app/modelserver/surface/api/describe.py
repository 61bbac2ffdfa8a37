"""The description of a model version (reference 5.4), with the source of each batch setting."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.gpus import NO_GPU, gpus
from modelserver.engine.telemetry.system import worker_memory
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.options.table import OPTIONS
from modelserver.models.version import ModelVersion

# Names in the answer and names of the options.
_BATCH_SETTINGS = (
    ("policy", "batch_policy"),
    ("batchSize", "batch_size"),
    ("maxBatchDelay", "max_batch_delay"),
    ("timeout", "request_timeout"),
    ("jobQueueSize", "job_queue_size"),
    ("splitInstances", "split_instances"),
)


def describe(model: ModelVersion) -> dict[str, Any]:
    """One element of the answer; fields that are None are omitted when it is sent.

    GPUs are described as of their last reading.
    """
    options, pool = model.options, model.pool
    statistics, sequences = pool.statistics(), None if pool.affinity is None else pool.affinity.statistics
    # Only the shared queue: sequences have their own (reference 5.4).
    pending = statistics.pending - (0 if sequences is None else sequences["waiting"])
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": model.url,
        "runtime": model.runtime,
        "minWorkers": pool.min_workers,
        "maxWorkers": pool.max_workers,
        "batchSize": options.batch_size,
        "maxBatchDelay": options.max_batch_delay,
        "responseTimeout": options.response_timeout,
        "startupTimeout": options.startup_timeout,
        "maxRetryTimeoutInSec": options.max_retry_timeout,
        "clientTimeoutInMills": int((options.request_timeout or 0) * 1000),
        "parallelType": options.parallel_type,
        "parallelLevel": options.parallel_level,
        "deviceType": options.device_type,
        "deviceIds": list(options.device_ids) or None,
        "continuousBatching": options.continuous_batching,
        "useJobTicket": options.use_job_ticket,
        "useVenv": options.use_venv,
        **describe_sequences(options),
        **described(options),
        "loadedAtStartup": model.loaded_at_startup,
        **describe_failure(model),
        "errors": describe_errors(model),
        "warnings": pool.warnings or None,
        "precision": (pool.crew.model and pool.crew.model.precision) or None,
        "autoscaling": describe_autoscaling(model),
        "parking": None if pool.crew.on_demand is None else pool.crew.on_demand.describe(),
        "replacement": describe_replacement(model),
        "traffic": None if model.traffic is None else model.traffic.describe(model.version),
        "workers": [describe_worker(worker) for worker in pool.workers],
        "jobQueueStatus": {"remainingCapacity": statistics.capacity - pending, "pendingRequests": pending},
        "sequences": sequences,
        "batching": describe_batching(model),
    }


def describe_failure(model: ModelVersion) -> dict[str, Any]:
    """Why a version from a snapshot could not be restored; empty for others."""
    return {"status": "FAILED", "failure": model.failure} if model.failure else {}


def describe_errors(model: ModelVersion) -> dict[str, Any] | None:
    """The requests that were answered with a status of 500 or more; None if there were none."""
    errors, failing = model.metrics.requests.errors, model.pool.failing
    if errors.last is None and not failing:
        return None
    last = errors.last and {
        "time": moment(errors.last.at),
        "type": errors.last.type,
        "status": errors.last.status,
        "message": errors.last.message,
        "requestId": errors.last.request_id,
    }
    return {"count": errors.count, "failing": failing, "types": dict(errors.by_type), "last": last}


def describe_replacement(model: ModelVersion) -> dict[str, Any] | None:
    """What is replacing the version, or failed to; None without a replacement."""
    coming = model.replacement
    if coming is None:
        return None
    return {
        "modelUrl": coming.url,
        "modelVersion": coming.version or None,
        "status": coming.state,
        "failure": coming.failure or None,
        "since": moment(coming.since),
    }


def describe_autoscaling(model: ModelVersion) -> dict[str, Any] | None:
    """How the number of workers follows the load, with times in ms; None without autoscaling."""
    options = model.options
    if not options.autoscale:
        return None
    state = model.pool.crew.autoscaling
    return {
        **described(options, "autoscaling"),
        "source": options.sources.get("autoscale", "default"),
        **({} if state is None else state.describe()),
    }


def described(options: ModelOptions, block: str = "") -> dict[str, Any]:
    """Options that are shown unchanged, in this block or outside of all; 0 means no limit and is omitted."""
    places = ((each.described.rpartition("."), name) for name, each in OPTIONS.items() if each.described)
    return {key: getattr(options, name) or None for (within, _, key), name in places if within == block}


def describe_sequences(options: ModelOptions) -> dict[str, Any]:
    """The limits of sequences; zeros for models without sequences."""
    stateful = options.sequence_batching
    return {
        "stateful": stateful,
        "sequenceMaxIdleMSec": options.sequence_max_idle_ms if stateful else 0,
        "sequenceTimeoutMSec": options.sequence_timeout_ms if stateful else 0,
        "maxNumSequence": options.max_num_sequence if stateful else 0,
        "maxSequenceJobQueueSize": options.max_sequence_job_queue_size if stateful else 0,
    }


def describe_worker(worker: Worker) -> dict[str, Any]:
    """One worker; ``failure`` is None if it has not failed."""
    last = worker.failures.last_end
    return {
        "id": str(worker.id),
        "startTime": moment(worker.created),
        "status": worker.state.value,
        **_whereabouts(worker),
        "failure": worker.failure or None,
        "failedLoads": worker.failures.loads or None,
        "nextTry": moment(worker.failures.next_try) if worker.failures.next_try else None,
        "lastEnd": None if last is None else {"time": moment(last[0]), "reason": last[1]},
        "largestBatch": worker.most_rows or None,
    }


def _whereabouts(worker: Worker) -> dict[str, Any]:
    """Memory, process, GPU and machine of a worker; ``node`` is None on this machine."""
    node = None if worker.process is None else worker.process.node
    if node is None:
        memory, has_gpu, usage = worker_memory(worker.pid), worker.gpu is not None, gpus.usage(worker.gpu)
    else:
        usage = NO_GPU if worker.is_on_cpu else node.gpu or NO_GPU
        memory, has_gpu = node.resident, usage != NO_GPU
    return {
        "memoryUsage": memory,
        "pid": worker.pid,
        "gpu": has_gpu,
        "gpuUsage": usage,
        "node": None if node is None else {"name": node.name, "host": node.host},
    }


def describe_batching(model: ModelVersion) -> dict[str, Any]:
    """The effective batch settings, each with its source."""
    options = model.options
    values = ((key, name, getattr(options, name)) for key, name in _BATCH_SETTINGS)
    return {
        key: {"value": value, "source": options.sources.get(name, "default")}
        for key, name, value in values
        if value is not None
    }


def moment(seconds: float) -> str:
    """A time since the epoch as text."""
    time = datetime.fromtimestamp(seconds, timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
