"""What describe says of a model version (reference 5.4), and beside it where each batch setting came from."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from modelserver.telemetry.system import gpu_usage, worker_memory

if TYPE_CHECKING:
    from modelserver.models.version import ModelVersion
    from modelserver.workers.worker import Worker

# Name in the answer, name of the option.
_BATCH_SETTINGS = (
    ("policy", "batch_policy"),
    ("batchSize", "batch_size"),
    ("maxBatchDelay", "max_batch_delay"),
    ("timeout", "request_timeout"),
    ("jobQueueSize", "job_queue_size"),
    ("splitInstances", "split_instances"),
)


def describe(model: ModelVersion) -> dict[str, Any]:
    """One element of the describe answer; fields that are None are left out when it is sent."""
    options, pool = model.options, model.pool
    statistics = pool.statistics()
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
        "continuousBatching": False,
        "useJobTicket": False,
        "useVenv": False,
        "stateful": False,
        "sequenceMaxIdleMSec": 0,
        "sequenceTimeoutMSec": 0,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": model.loaded_at_startup,
        "workers": [describe_worker(worker) for worker in pool.workers],
        "jobQueueStatus": {
            "remainingCapacity": statistics.capacity - statistics.pending,
            "pendingRequests": statistics.pending,
        },
        "batching": describe_batching(model),
    }


def describe_worker(worker: Worker) -> dict[str, Any]:
    """One worker; ``failure`` is there while it has one."""
    created = datetime.fromtimestamp(worker.created, timezone.utc)
    return {
        "id": str(worker.id),
        "startTime": created.strftime("%Y-%m-%dT%H:%M:%S.") + f"{created.microsecond // 1000:03d}Z",
        "status": worker.state.value,
        "memoryUsage": worker_memory(worker.pid) if worker.pid > 0 else 0,
        "pid": worker.pid,
        "gpu": worker.gpu_id is not None,
        "gpuUsage": gpu_usage(worker.gpu_id),
        "failure": worker.failure or None,
    }


def describe_batching(model: ModelVersion) -> dict[str, Any]:
    """The effective batch settings, each with its source."""
    options = model.options
    described = {}
    for shown, name in _BATCH_SETTINGS:
        value = getattr(options, name)
        if value is not None:
            described[shown] = {
                "value": getattr(value, "value", value),
                "source": options.sources.get(name, "default"),
            }
    return described
