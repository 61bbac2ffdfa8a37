"""Traffic between the versions of a model, over the management API (docs/rollouts.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response
from typing_extensions import Required, TypedDict

from modelserver.ext.rollout.latencies import Latencies, milliseconds
from modelserver.ext.rollout.router import TrafficRouter, traffic_of
from modelserver.models.version import ModelVersion
from modelserver.surface.api.application import Application, JsonBody
from modelserver.surface.api.models import Promotion
from modelserver.surface.api.parameters import read_object
from modelserver.surface.api.services import Services
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from modelserver.ext.rollout.shadow import Difference, Shadow

_Count = Annotated[int, Field(ge=0)]
_Percent = Annotated[float, Field(ge=0, le=100)]
_Share = Annotated[float, Field(ge=0, le=1)]


class Shadowing(TypedDict, total=False):
    """A version that gets copies."""

    percent: Required[Annotated[_Percent, Field(description="Of the requests that other versions answer.")]]
    compare: Annotated[Literal["exact", "numeric", "top1"], Field(json_schema_extra={"default": "exact"})]
    tolerance: Annotated[float, Field(ge=0, description="With numeric; by default 0.00001.")]


class Promoting(TypedDict, total=False):
    """Raises the weight of a version by itself, and takes it back."""

    after: Annotated[
        int, Field(ge=1, description="Answers before a step.", json_schema_extra={"default": 10000})
    ]
    agreement: Annotated[_Share, Field(description="The least share of compared answers that agree.")]
    p99_ratio: Annotated[float, Field(description="The most that its 99th percentile may be of the other's.")]
    errors: Annotated[_Share, Field(description="The largest share of its answers that may have failed.")]
    steps: Annotated[list[_Percent], Field(description="The weights; by default 1, 5, 25, 50, 100.")]
    version: Annotated[
        str, Field(description="The version; needed only if there are several beside the base.")
    ]
    dry_run: Annotated[
        bool, Field(description="Only say what would be done.", json_schema_extra={"default": False})
    ]


_Weights = Annotated[
    dict[str, _Percent],
    Field(description="Percent of the requests that name no version, by version; together 100."),
]
_Sticky = Annotated[str, Field(description="A header: requests with the same value go to the same version.")]
_Shadows = Annotated[
    dict[str, Shadowing],
    Field(description="Versions that get copies of requests, whose answers are compared."),
]


class TrafficChange(TypedDict, total=False):
    """The parts to change; null removes a part."""

    weights: _Weights | None
    sticky: _Sticky | None
    shadow: _Shadows | None
    promote: Promoting | None


class Traffic(TypedDict, total=False):
    """What was asked for, and what holds now."""

    modelName: Required[str]
    default: Required[
        Annotated[str, Field(description="The default version, which gets everything without weights.")]
    ]
    weights: _Weights
    sticky: _Sticky
    shadow: _Shadows
    promote: Promoting
    effective: Required[
        Annotated[
            dict[str, _Percent],
            Field(description="What each version gets now: nothing without a ready worker."),
        ]
    ]
    promotion: Promotion


_T = TypeVar("_T")


class Both(TypedDict, Generic[_T], total=False):
    """Values of the version that answered, and of the shadow."""

    primary: _T
    shadow: _T


class Percentiles(TypedDict, total=False):
    """Percentiles of latencies."""

    p50: float
    p90: float
    p99: float


class Bodies(TypedDict, total=False):
    """How they begin; only with `shadow_bodies`."""

    request: str
    primary: str
    shadow: str


class DifferenceDescription(TypedDict, total=False):
    """Two answers that differ."""

    requestId: str
    reason: str
    status: Both[int]
    latency: Annotated[Both[float], Field(description="Milliseconds.")]
    batchId: Both[str]
    batchSize: Both[int]
    bodies: Bodies


class ShadowDescription(TypedDict, total=False):
    """How the answers of a shadow compare."""

    percent: _Percent
    compare: str
    tolerance: float
    waiting: Annotated[_Count, Field(description="Copies that wait to be sent.")]
    copies: Annotated[dict[str, _Count], Field(description="Copies by what became of them.")]
    failed: Annotated[_Count, Field(description="Copies that failed although the primary did not.")]
    agreement: Annotated[_Share, Field(description="The share of compared answers that agreed.")]
    latency: Annotated[Both[Percentiles], Field(description="Milliseconds.")]
    batchSize: Annotated[Both[float], Field(description="The mean.")]
    differences: Annotated[list[DifferenceDescription], Field(description="The last ones, the newest first.")]


class Shadows(TypedDict):
    """The shadows of a model."""

    modelName: str
    shadows: Annotated[dict[str, ShadowDescription], Field(description="By version.")]


def add_routes(app: Application, services: Services, router: TrafficRouter) -> None:
    """Adds the routes."""
    registry = services.registry

    async def show(name: str) -> Response:
        return Response(pretty(describe_traffic(registry.get(name))), media_type=JSON)

    async def change(request: Request, name: str) -> Response:
        await router.change(name, await read_object(request, required=True))
        return await show(name)

    async def drop(name: str) -> Response:
        await router.drop(name)
        return await show(name)

    async def shadows(name: str) -> Response:
        return Response(pretty(describe_shadows(registry.get(name))), media_type=JSON)

    add, path = app.section("Management"), "/models/{name}/traffic"
    text = "Which version gets which share of a model's requests."
    add(show, f"get {path}", "describeTraffic", text, Traffic, (404,))
    text = "Divide a model's requests among its versions, copy them to a shadow, promote a version."
    request = Annotated[dict[str, _Percent] | TrafficChange, Field(title="TrafficRequest")]
    body = JsonBody(request, "Weights by version alone, or the parts to change.", {"1.0": 90, "2.0": 10})
    add(change, f"put {path}", "changeTraffic", text, Traffic, (400, 404, 413), body=body)
    text = "Send all of a model's requests to its default version again."
    add(drop, f"delete {path}", "dropTraffic", text, Traffic, (404,))
    text = "How the answers of a model's shadows compare."
    add(shadows, "get /models/{name}/shadow", "describeShadows", text, Shadows, (404,))


def describe_traffic(model: ModelVersion) -> dict[str, Any]:
    """What was asked for, and what holds now; ``model`` is the default version."""
    traffic = traffic_of(model)
    answer: dict[str, Any] = {"modelName": model.name, "default": model.version}
    if traffic is None:
        return {**answer, "effective": {model.version: 100 if model.pool.ready else 0}}
    return {
        **answer,
        **traffic.plan.document(),
        "effective": traffic.effective,
        "promotion": traffic.describe_promotion(),
    }


def describe_shadows(model: ModelVersion) -> dict[str, Any]:
    """How the answers of each shadow compare; ``model`` is the default version."""
    traffic = traffic_of(model)
    shadows = {} if traffic is None else traffic.shadows
    described = {name: _describe_shadow(shadow) for name, shadow in shadows.items()}
    return {"modelName": model.name, "shadows": described}


def _describe_shadow(shadow: Shadow) -> dict[str, Any]:
    counts = shadow.counts
    compared = counts.outcomes["agreed"] + counts.outcomes["differed"]
    answered = counts.latencies.total
    sides = {
        "primary": (counts.primary_latencies, counts.primary_batch_sizes),
        "shadow": (counts.latencies, counts.batch_sizes),
    }
    return {
        "percent": shadow.how.percent,
        "compare": shadow.how.mode,
        "tolerance": shadow.how.slack if shadow.how.mode == "numeric" else None,
        "waiting": shadow.waiting,
        "copies": dict(counts.outcomes),
        "failed": counts.failed,
        "agreement": round(counts.outcomes["agreed"] / compared, 6) if compared else None,
        "latency": {name: _percentiles(latencies) for name, (latencies, _) in sides.items()}
        if answered
        else None,
        "batchSize": {name: round(sizes / answered, 2) for name, (_, sizes) in sides.items()}
        if answered
        else None,
        "differences": [_describe_difference(each) for each in reversed(shadow.differences)],
    }


def _percentiles(latencies: Latencies) -> dict[str, float | None]:
    shares = (0.5, 0.9, 0.99)
    return {f"p{round(share * 100)}": milliseconds(latencies.percentile(share)) for share in shares}


def _describe_difference(difference: Difference) -> dict[str, Any]:
    def both(values: tuple[Any, Any]) -> dict[str, Any]:
        return {"primary": values[0], "shadow": values[1]}

    bodies = difference.bodies
    texts = None if bodies is None else [body.decode("utf-8", "replace") for body in bodies]
    first, second = difference.seconds
    return {
        "requestId": difference.request_id,
        "reason": difference.reason,
        "status": both(difference.statuses),
        "latency": both((milliseconds(first), milliseconds(second))),
        "batchId": both((difference.batches[0][0], difference.batches[1][0])),
        "batchSize": both((difference.batches[0][1], difference.batches[1][1])),
        "bodies": None if texts is None else {"request": texts[0], **both((texts[1], texts[2]))},
    }
