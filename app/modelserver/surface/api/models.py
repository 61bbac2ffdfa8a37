"""What clients send to the API and receive from it, as types; the fields have the names of the JSON.

Fields that are None are left out of responses, so they are optional rather than null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo  # noqa: TC002 - pydantic reads annotations at run time
from typing_extensions import Required, TypedDict

from modelserver.engine.pools.pool import FAILING
from modelserver.engine.tensors.rest import HEADER_LENGTH
from modelserver.models.options.resolve import PARAMETERS
from modelserver.models.options.table import CHANGEABLE


def about(text: str) -> FieldInfo:
    """The description of a field."""
    field: FieldInfo = Field(description=text)
    return field


def optional(text: str, default: Any = None, **more: Any) -> Any:
    """The description of a field that may be absent."""
    return Field(default=default, description=text, **more)


Count: TypeAlias = Annotated[int, Field(ge=0)]
Percent: TypeAlias = Annotated[float, Field(ge=0, le=100)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Int64: TypeAlias = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Time: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Id: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
Warnings: TypeAlias = Annotated[
    list[str], about("Notes for the author of the archive or the request; absent without any.")
]
AnyObject: TypeAlias = dict[str, Any]


class Error(TypedDict, total=False):
    """What went wrong. V2 routes may send `error` alone."""

    code: Annotated[int, about("The HTTP status.")]
    type: Annotated[str, about("The kind of error.")]
    message: str
    error: Annotated[str, about("The message again, on V1 and V2 routes.")]
    request_id: Annotated[str, about("With `expose_errors`, where a handler failed.")]
    batchId: Annotated[str, about("On V1 routes of models that batch; empty if the request was in no batch.")]
    predictions: Annotated[list[Any] | None, about("Null, with `batchId`.")]


class Status(TypedDict, total=False):
    """What was done."""

    status: Required[str]
    warnings: Warnings


class Nothing(TypedDict):
    """An empty object."""


# Management


class ModelListEntry(TypedDict):
    """A model and its default version's archive."""

    modelName: str
    modelUrl: str


class ModelList(TypedDict, total=False):
    """A page of the registered models."""

    nextPageToken: Annotated[str, about("Where the next page begins; absent on the last.")]
    models: Required[list[ModelListEntry]]


class PageQuery(BaseModel):
    """Which part of a list."""

    limit: Annotated[int, optional("Entries on a page, at most 100.", 100)]
    next_page_token: Annotated[str, optional("nextPageToken of the page before.")]


class DescribeQuery(BaseModel):
    """What a description has besides."""

    customized: Annotated[
        bool, optional("Ask the handler too, through a worker; not for `all`.", default=False)
    ]


_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool}
# The first and last parameters of a registration in the documentation.
_FIRST = (
    "url",
    "model_name",
    "handler",
    "runtime",
    "batch_size",
    "max_batch_size",
    "max_batch_delay",
    "max_latency",
    "batch_policy",
    "timeout",
    "initial_workers",
)
_LAST = ("synchronous", "response_timeout", "startup_timeout", "s3_sse_kms")
_ORDER = dict.fromkeys((*_FIRST, *(name for name in PARAMETERS if name not in _LAST), *_LAST))
# The model keeps its name, min_worker and max_worker say how many workers it has, and synchronous stands for
# all changes.
_NOT_OF_REPLACEMENT = {"url", "model_name", "initial_workers", "min_workers", "max_workers", "synchronous"}


def _parameter(name: str, before: str = "") -> Any:
    """A parameter of a registration as a field."""
    row = PARAMETERS[name]
    choices = {"enum": list(row.values.choices)} if row.values.choices else {}
    extra = {**choices, **row.schema}
    default = extra.pop("default", ... if name == "url" else None)
    about = f"{before}{row.description}"
    return _TYPES[row.values.type], Field(default, description=about, json_schema_extra=extra)


_URL = (
    "The archive that replaces this one as soon as it is loaded. Parameters of a registration may be given "
    "too; others keep their values."
)
_SCALING: dict[str, Any] = {
    "min_worker": (int, optional("Workers at least.", 1, examples=[2])),
    "max_worker": (int, optional("Workers at most; by default min_worker.")),
    "synchronous": (bool, optional("Answer when the workers are ready.", default=False)),
    **{name: (_TYPES[row.values.type], optional(row.changed)) for name, row in CHANGEABLE.items()},
    "url": (str, optional(_URL)),
    **{
        name: _parameter(name, "With url. ")
        for name in PARAMETERS
        if name not in CHANGEABLE and name not in _NOT_OF_REPLACEMENT
    },
}
_VERSION = str, optional("The version; by default the default one.")
RegisterRequest = create_model("RegisterRequest", **{name: _parameter(name) for name in _ORDER})
ScaleVersionQuery = create_model("ScaleVersionQuery", **_SCALING)
ScaleQuery = create_model("ScaleQuery", __base__=ScaleVersionQuery, model_version=_VERSION)


class LogLevel(TypedDict, total=False):
    """How much the server logs."""

    level: str


class LogLevelQuery(BaseModel):
    """What PUT /logging changes."""

    level: Annotated[str, Field(description="debug, info, warn or error.", examples=["debug"])]


class TokenQuery(BaseModel):
    """What GET /token replaces."""

    type: Annotated[Literal["inference", "management"], about("Which token.")]


class MetricsQuery(BaseModel):
    """Which metrics are asked for."""

    names: Annotated[list[str], optional("Only metrics of these names; may be repeated.", alias="name[]")]


# The description of a version


class Promotion(TypedDict, total=False):
    """The promotion under way, or how the last one ended."""

    version: Annotated[str, about("The version that is promoted.")]
    base: Annotated[str, about("The one that it replaces.")]
    state: Literal["watching", "promoted", "rolled back", "stopped"]
    reason: Annotated[str, about("Why the weight was changed last, or would have been in a dry run.")]
    since: Time
    next: Annotated[Percent, about("The weight of the next step.")]
    answers: Annotated[Count, about("Answers of the version since the last step, to clients and copies.")]
    failed: Annotated[Count, about("How many of them failed.")]
    slow: Annotated[Count, about("How many were slower than p99_ratio allows.")]
    compared: Annotated[Count, about("Answers that were compared with the other version's.")]
    differed: Annotated[Count, about("How many of them differed.")]
    p99: Annotated[
        dict[str, float], about("The 99th percentile of latency of both versions, in milliseconds.")
    ]


class TrafficShare(TypedDict, total=False):
    """A version's part in the traffic between the versions; absent if that is not set."""

    wanted: Annotated[Percent, about("Percent of the requests without a version that it is to get.")]
    effective: Annotated[Percent, about("Percent that it gets now: nothing without a ready worker.")]
    sticky: Annotated[str, about("The header that decides.")]
    shadow: Annotated[Percent, about("Percent of the others' requests of which it gets copies.")]
    promotion: Promotion


ScalingEvent = TypedDict(
    "ScalingEvent", {"time": Time, "from": Count, "to": Count, "reason": str}, total=False
)


class Precision(TypedDict, total=False):
    """What the network computes in, where the handler had a choice, as on GPUs."""

    asked: str
    used: str
    why: str


class Autoscaling(TypedDict, total=False):
    """How the number of workers follows the load; times in milliseconds."""

    targetWait: int
    upPause: int
    downPause: int
    source: Annotated[str, about("Where the setting comes from.")]
    wish: Annotated[Count, about("How many workers the load needs.")]
    reason: str
    queueWait: Annotated[int, about("How long a request waits; absent if it would be refused.")]
    busy: Annotated[float, about("How many workers are busy, on average.")]
    lastChange: ScalingEvent


class Replacement(TypedDict, total=False):
    """What is replacing this version, or failed to; absent without a replacement."""

    modelUrl: str
    modelVersion: str
    status: Literal["LOADING", "FAILED"]
    failure: Annotated[str, about("Why the replacement failed.")]
    since: Time


class WorkerNode(TypedDict, total=False):
    """The other machine that the worker runs on; absent if none."""

    name: str
    host: str


class WorkerEnd(TypedDict, total=False):
    """When, and why, its last process ended unexpectedly after it had loaded; absent if none did."""

    time: Time
    reason: str


class WorkerDescription(TypedDict, total=False):
    """A worker."""

    id: str
    startTime: Time
    status: Literal["LOADING", "READY", "UNLOADING", "FAILED"]
    memoryUsage: Annotated[Int64, about("Resident bytes.")]
    pid: int
    gpu: Annotated[bool, about("Whether its model is on a GPU; until it has loaded, whether it gets one.")]
    gpuUsage: str
    node: WorkerNode
    failure: Annotated[str, about("Why it failed.")]
    failedLoads: Annotated[Count, about("How often in a row its model could not be loaded.")]
    nextTry: Annotated[Time, about("When its next process starts; absent unless it waits for that.")]
    lastEnd: WorkerEnd
    largestBatch: Annotated[
        Count,
        about("The rows that fit into its GPU's memory, if it splits larger batches; otherwise absent."),
    ]


class LastError(TypedDict, total=False):
    """The last one."""

    time: Time
    type: str
    status: Count
    message: str
    requestId: str


class ErrorCounts(TypedDict, total=False):
    """Requests that were answered with a status of 500 or more; absent if there were none."""

    count: Count
    failing: Annotated[bool, about(f"Whether the last {FAILING} batches all failed.")]
    types: Annotated[
        dict[str, Count], about("By type: the class of a handler's exception, or of an error of the server.")
    ]
    last: LastError


class ParkingState(TypedDict, total=False):
    """A model that is loaded on demand; `memory` and `need` are bytes, `loadTime` is milliseconds."""

    state: Literal["parked", "waiting", "loading", "loaded", "failed"]
    memory: int
    need: Annotated[int, about("What loading it needs, by the last load, else by its files.")]
    deviceMemory: Annotated[dict[str, int], about("Bytes by GPU, where the driver says it.")]
    deviceNeed: Annotated[int, about("What loading it needs of each GPU.")]
    loadTime: int
    loads: int
    failedLoads: int
    parks: Annotated[dict[str, int], about("How often it was parked, by reason.")]
    prewarms: Annotated[dict[str, int], about("Loads ahead of time: `hit`, it was used, or `miss`.")]
    failure: str
    nextTry: Annotated[float, about("When a request may try again, in seconds since the epoch.")]


class JobQueueStatus(TypedDict, total=False):
    """Requests in the queue, and how many more it takes."""

    remainingCapacity: int
    pendingRequests: int


class Sequences(TypedDict, total=False):
    """Sequences that have begun, and requests of theirs that wait."""

    living: int
    waiting: int


class BatchSetting(TypedDict, total=False):
    """An effective setting."""

    value: Any
    source: Annotated[str, about("Where the value comes from.")]


class ModelDescription(TypedDict, total=False):
    """A version of a model."""

    modelName: str
    modelVersion: str
    modelUrl: str
    runtime: str
    minWorkers: int
    maxWorkers: int
    batchSize: int
    maxBatchDelay: int
    responseTimeout: int
    startupTimeout: int
    maxRetryTimeoutInSec: int
    clientTimeoutInMills: int
    parallelType: str
    parallelLevel: int
    deviceType: str
    deviceIds: list[int]
    continuousBatching: bool
    useJobTicket: bool
    useVenv: bool
    stateful: bool
    sequenceMaxIdleMSec: int
    sequenceTimeoutMSec: int
    maxNumSequence: int
    maxSequenceJobQueueSize: int
    maxWorkerMemory: int
    maxWorkerRequests: int
    workerThreads: int
    loadedAtStartup: bool
    workers: list[WorkerDescription]
    jobQueueStatus: JobQueueStatus
    status: Annotated[Literal["FAILED"], about("If the version was not restored.")]
    failure: Annotated[str, about("Why the version could not be restored.")]
    sequences: Sequences
    batching: Annotated[
        dict[str, BatchSetting], about("The effective batch settings by name, each with its source.")
    ]
    autoscaling: Autoscaling
    parking: ParkingState
    replacement: Replacement
    traffic: TrafficShare
    errors: ErrorCounts
    warnings: Warnings
    precision: Precision
    customizedMetadata: Annotated[
        AnyObject, about("The handler's own metadata; only with `customized=true`.")
    ]


# V1 and V2 (Open Inference)


class V1Request(TypedDict, total=False):
    """Instances."""

    instances: list[Any]
    inputs: Annotated[list[Any], about("Another name of instances.")]


class V1Response(TypedDict, total=False):
    """batchId and message are there when the model batches."""

    message: str
    batchId: Id
    predictions: list[Any]
    explanations: list[Any]


class V1Models(TypedDict):
    """The names of the registered models."""

    models: list[str]


class V1Ready(TypedDict):
    """Whether a model is ready."""

    name: str
    ready: bool


class V2Tensor(TypedDict, total=False):
    """A tensor."""

    name: Required[str]
    shape: Required[list[Int64]]
    datatype: Required[str]
    parameters: AnyObject
    data: Annotated[list[Any], about("Row-major, flat or nested.")]


class V2Output(TypedDict, total=False):
    """An output that the client asks for."""

    name: Required[str]
    parameters: AnyObject


class V2Request(TypedDict, total=False):
    """Tensors for a model."""

    id: str
    parameters: AnyObject
    inputs: Required[list[V2Tensor]]
    outputs: list[V2Output]


class V2Response(TypedDict, total=False):
    """A model's tensors."""

    model_name: Required[str]
    model_version: str
    id: str
    parameters: AnyObject
    outputs: Required[list[V2Tensor]]


class V2Headers(BaseModel):
    """Headers of requests with tensors."""

    length: Annotated[
        int, optional("Bytes of the JSON, where tensors in binary form follow it.", alias=HEADER_LENGTH)
    ]


class InvocationsQuery(BaseModel):
    """The parameter of SageMaker's route that the server reads; the handler gets all."""

    model_name: Annotated[
        str,
        optional(
            "The model; a field of a form may name it too. Not needed when exactly one was loaded at start."
        ),
    ]
