"""The description of a model version (reference 5.4), with the source of each batch setting."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from modelserver.engine.pools.pool import FAILING
from modelserver.engine.telemetry.gpus import NO_GPU, gpus
from modelserver.engine.telemetry.system import worker_memory
from modelserver.models.options.table import OPTIONS
from modelserver.models.version import FailedVersion
from modelserver.surface.api import descriptions as oas
from modelserver.surface.api.shares import SHARE, describe_share, moment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelserver.engine.pools.worker import Worker
    from modelserver.models.options.resolve import ModelOptions
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


async def read_gpus_of(models: Iterable[ModelVersion]) -> None:
    """Takes new readings of the GPUs, if workers of these models use any, before they are described."""
    if any(worker.gpu is not None for model in models for worker in model.pool.workers):
        await gpus.renew()


def describe(model: ModelVersion) -> dict[str, Any]:
    """One element of the answer; fields that are None are omitted when it is sent.

    GPUs are described as of their last reading.
    """
    options, pool = model.options, model.pool
    statistics, sequences = pool.statistics(), pool.sequences
    # Only the shared queue: sequences have their own (reference 5.4).
    pending = statistics.pending - (0 if sequences is None else sequences.waiting)
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
        "precision": next((worker.precision for worker in pool.workers if worker.precision), None),
        "autoscaling": describe_autoscaling(model),
        "replacement": describe_replacement(model),
        "traffic": describe_share(model),
        "workers": [describe_worker(worker) for worker in pool.workers],
        "jobQueueStatus": {"remainingCapacity": statistics.capacity - pending, "pendingRequests": pending},
        "sequences": None if sequences is None else asdict(sequences),
        "batching": describe_batching(model),
    }


def describe_failure(model: ModelVersion) -> dict[str, Any]:
    """Why a version from a snapshot could not be restored; empty for others."""
    return {"status": "FAILED", "failure": model.failure} if isinstance(model, FailedVersion) else {}


def describe_errors(model: ModelVersion) -> dict[str, Any] | None:
    """The requests that were answered with a status of 500 or more; None if there were none."""
    errors, failing = model.metrics.errors, model.pool.failing
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
    answer: dict[str, Any] = {
        **described(options, "autoscaling"),
        "source": options.sources.get("autoscale", "default"),
    }
    state = model.pool.autoscaling
    if state is None or state.decision is None or state.sample is None:
        return answer
    answer |= {
        "wish": state.decision.wish,
        "reason": state.decision.reason,
        "queueWait": None if math.isinf(state.sample.wait) else round(state.sample.wait * 1000),
        "busy": round(state.sample.busy, 2),
    }
    if (event := state.event) is not None:
        answer["lastChange"] = {
            "time": moment(event.at), "from": event.before, "to": event.after, "reason": event.reason
        }  # fmt: skip
    return answer


def described(options: ModelOptions, block: str = "") -> dict[str, Any]:
    """Options that are shown unchanged, in this block or outside of all; 0 means no limit and is omitted."""
    places = (
        (option.described.rpartition("."), name) for name, option in OPTIONS.items() if option.described
    )
    return {shown: getattr(options, name) or None for (within, _, shown), name in places if within == block}


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
    last = worker.last_end
    return {
        "id": str(worker.id),
        "startTime": moment(worker.created),
        "status": worker.state.value,
        **_whereabouts(worker),
        "failure": worker.failure or None,
        "failedLoads": worker.load_failures or None,
        "nextTry": moment(worker.next_try) if worker.next_try else None,
        "lastEnd": None if last is None else {"time": moment(last[0]), "reason": last[1]},
        "largestBatch": worker.most_rows or None,
    }


def _whereabouts(worker: Worker) -> dict[str, Any]:
    """Memory, process, GPU and machine of a worker; ``node`` is None on this machine."""
    node = None if worker.process is None else worker.process.node
    if node is None:
        return {
            "memoryUsage": worker_memory(worker.pid) if worker.pid > 0 else 0,
            "pid": worker.pid,
            "gpu": worker.gpu is not None,
            "gpuUsage": gpus.usage(worker.gpu),
            "node": None,
        }
    usage = NO_GPU if worker.is_on_cpu else node.gpu or NO_GPU
    return {
        "memoryUsage": node.resident,
        "pid": worker.pid,
        "gpu": usage != NO_GPU,
        "gpuUsage": usage,
        "node": {"name": node.name, "host": node.host},
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


# The schema

_NUMBERS = (
    *("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout"),
    *("maxRetryTimeoutInSec", "clientTimeoutInMills", "parallelLevel", "sequenceMaxIdleMSec"),
    *("sequenceTimeoutMSec", "maxNumSequence", "maxSequenceJobQueueSize"),
    *(row.described for row in OPTIONS.values() if row.described and "." not in row.described),
)
_AUTOSCALING = oas.record(
    {
        **dict.fromkeys(("targetWait", "upPause", "downPause"), oas.WHOLE),
        "source": oas.told(oas.TEXT, "Where the setting comes from."),
        "wish": oas.told(oas.COUNT, "How many workers the load needs."),
        "reason": oas.TEXT,
        "queueWait": oas.told(oas.WHOLE, "How long a request waits; absent if it would be refused."),
        "busy": {"type": "number", "description": "How many workers are busy, on average."},
        "lastChange": oas.record({"time": oas.TIME, "from": oas.COUNT, "to": oas.COUNT, "reason": oas.TEXT}),
    },
    description="How the number of workers follows the load; times in milliseconds.",
)
_REPLACEMENT = oas.record(
    {
        "modelUrl": oas.TEXT,
        "modelVersion": oas.TEXT,
        "status": {**oas.TEXT, "enum": ["LOADING", "FAILED"]},
        "failure": oas.told(oas.TEXT, "Why the replacement failed."),
        "since": oas.TIME,
    },
    description="What is replacing this version, or failed to; absent without a replacement.",
)
_WORKER = oas.record(
    {
        "id": oas.TEXT,
        "startTime": oas.TIME,
        "status": {**oas.TEXT, "enum": ["LOADING", "READY", "UNLOADING", "FAILED"]},
        "memoryUsage": {**oas.WHOLE, "format": "int64", "description": "Resident bytes."},
        "pid": oas.WHOLE,
        "gpu": oas.told(oas.FLAG, "Whether its model is on a GPU; until it has loaded, whether it gets one."),
        "gpuUsage": oas.TEXT,
        "node": oas.told(
            oas.record({"name": oas.TEXT, "host": oas.TEXT}),
            "The other machine that it runs on; absent if none.",
        ),
        "failure": oas.told(oas.TEXT, "Why it failed."),
        "failedLoads": oas.told(oas.COUNT, "How often in a row its model could not be loaded."),
        "nextTry": oas.told(oas.TIME, "When its next process starts; absent unless it waits for that."),
        "lastEnd": oas.told(
            oas.record({"time": oas.TIME, "reason": oas.TEXT}),
            "When, and why, its last process ended unexpectedly after it had loaded; absent if none did.",
        ),
        "largestBatch": oas.told(
            oas.COUNT,
            "The rows that fit into its GPU's memory, if it splits larger batches; otherwise absent.",
        ),
    }
)
_ERRORS = oas.record(
    {
        "count": oas.COUNT,
        "failing": oas.told(oas.FLAG, f"Whether the last {FAILING} batches all failed."),
        "types": {
            "type": "object",
            "description": "By type: the class of a handler's exception, or of an error of the server.",
            "additionalProperties": oas.COUNT,
        },
        "last": oas.record(
            {
                "time": oas.TIME,
                "type": oas.TEXT,
                "status": oas.COUNT,
                "message": oas.TEXT,
                "requestId": oas.TEXT,
            }
        ),
    },
    description="Requests that were answered with a status of 500 or more; absent if there were none.",
)
_SETTING = oas.record({"value": {}, "source": oas.told(oas.TEXT, "Where the value comes from.")})
SCHEMAS: oas.Document = {
    "ModelDescription": oas.record(
        {
            **dict.fromkeys(
                ("modelName", "modelVersion", "modelUrl", "runtime", "parallelType", "deviceType"), oas.TEXT
            ),
            **dict.fromkeys(_NUMBERS, oas.WHOLE),
            **dict.fromkeys(
                ("continuousBatching", "useJobTicket", "useVenv", "stateful", "loadedAtStartup"), oas.FLAG
            ),
            "deviceIds": oas.array(oas.WHOLE),
            "workers": oas.array(_WORKER),
            "jobQueueStatus": oas.record({"remainingCapacity": oas.WHOLE, "pendingRequests": oas.WHOLE}),
            "status": {**oas.TEXT, "enum": ["FAILED"], "description": "If the version was not restored."},
            "failure": oas.told(oas.TEXT, "Why the version could not be restored."),
            "sequences": oas.record({"living": oas.WHOLE, "waiting": oas.WHOLE}),
            "batching": {
                "type": "object",
                "description": "The effective batch settings by name, each with its source.",
                "additionalProperties": _SETTING,
            },
            "autoscaling": _AUTOSCALING,
            "replacement": _REPLACEMENT,
            "traffic": SHARE,
            "errors": _ERRORS,
            "warnings": oas.WARNINGS,
            "precision": oas.told(
                oas.record(dict.fromkeys(("asked", "used", "why"), oas.TEXT)),
                "What the network computes in, where the handler had a choice, as on GPUs.",
            ),
            "customizedMetadata": oas.told(
                oas.ANYTHING, "The handler's own metadata; only with `customized=true`."
            ),
        }
    )
}
