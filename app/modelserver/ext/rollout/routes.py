"""Traffic between the versions of a model, over the management API (docs/rollouts.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.surface.api import descriptions as oas
from modelserver.surface.api.parameters import read_json
from modelserver.surface.api.shares import PERCENT, PROMOTION, describe_promotion, milliseconds
from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from fastapi import FastAPI

    from modelserver.ext.rollout.shadow import Difference, Shadow
    from modelserver.models.registry import Registry
    from modelserver.models.version import ModelVersion


def add_traffic(app: FastAPI, registry: Registry) -> None:
    """Adds the routes; before those that take the last segment for a version."""

    async def show(name: str) -> Response:
        return Response(pretty(describe_traffic(registry.get(name))), media_type=JSON)

    async def change(request: Request, name: str) -> Response:
        await registry.change_traffic(name, await read_json(request))
        return await show(name)

    async def drop(name: str) -> Response:
        await registry.drop_traffic(name)
        return await show(name)

    async def shadows(name: str) -> Response:
        return Response(pretty(describe_shadows(registry.get(name))), media_type=JSON)

    for endpoint, described in ((show, _SHOW), (change, _CHANGE), (drop, _DROP)):
        oas.add(app, "/models/{name}/traffic", endpoint, **described)
    oas.add(app, "/models/{name}/shadow", shadows, get=_SHADOWS)


def describe_traffic(model: ModelVersion) -> dict[str, Any]:
    """What was asked for, and what holds now; ``model`` is the default version."""
    traffic = model.traffic
    answer: dict[str, Any] = {"modelName": model.name, "default": model.version}
    if traffic is None:
        return {**answer, "effective": {model.version: 100 if model.pool.ready else 0}}
    return {
        **answer,
        **traffic.plan.document(),
        "effective": traffic.effective,
        "promotion": describe_promotion(traffic),
    }


def describe_shadows(model: ModelVersion) -> dict[str, Any]:
    """How the answers of each shadow compare; ``model`` is the default version."""
    shadows = {} if model.traffic is None else model.traffic.shadows
    described = {name: _describe_shadow(shadow) for name, shadow in shadows.items()}
    return {"modelName": model.name, "shadows": described}


def _describe_shadow(shadow: Shadow) -> dict[str, Any]:
    counts = shadow.counts
    compared = counts.outcomes["agreed"] + counts.outcomes["differed"]
    answered = counts.latencies.total
    sides = (("primary", counts.primary_latencies), ("shadow", counts.latencies))
    return {
        "percent": shadow.how.percent,
        "compare": shadow.how.mode,
        "tolerance": shadow.how.slack if shadow.how.mode == "numeric" else None,
        "waiting": shadow.waiting,
        "copies": dict(counts.outcomes),
        "failed": counts.failed,
        "agreement": round(counts.outcomes["agreed"] / compared, 6) if compared else None,
        "latency": {
            name: {
                f"p{round(share * 100)}": milliseconds(latencies.percentile(share))
                for share in (0.5, 0.9, 0.99)
            }
            for name, latencies in sides
        }
        if answered
        else None,
        "batchSize": {
            "primary": round(counts.primary_batch_sizes / answered, 2),
            "shadow": round(counts.batch_sizes / answered, 2),
        }
        if answered
        else None,
        "differences": [_describe_difference(each) for each in reversed(shadow.differences)],
    }


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


# Descriptions


def _by_name(schema: oas.Document, about: str) -> oas.Document:
    return {"type": "object", "additionalProperties": schema, "description": about}


def _both(schema: oas.Document) -> oas.Document:
    return oas.record({"primary": schema, "shadow": schema})


_NUMBER: oas.Document = {"type": "number"}
_SHARE: oas.Document = {"type": "number", "minimum": 0, "maximum": 1}
_PLAN: oas.Document = {
    "weights": _by_name(PERCENT, "Percent of the requests that name no version, by version; together 100."),
    "sticky": oas.told(oas.TEXT, "A header: requests with the same value go to the same version."),
    "shadow": _by_name(
        oas.record(
            {
                "percent": oas.told(PERCENT, "Of the requests that other versions answer."),
                "compare": {**oas.TEXT, "enum": ["exact", "numeric", "top1"], "default": "exact"},
                "tolerance": {**_NUMBER, "minimum": 0, "description": "With numeric; by default 0.00001."},
            },
            "percent",
        ),
        "Versions that get copies of requests, whose answers are compared.",
    ),
    "promote": oas.record(
        {
            "after": {**oas.WHOLE, "minimum": 1, "default": 10000, "description": "Answers before a step."},
            "agreement": oas.told(_SHARE, "The least share of compared answers that agree."),
            "p99_ratio": oas.told(_NUMBER, "The most that its 99th percentile may be of the other's."),
            "errors": oas.told(_SHARE, "The largest share of its answers that may have failed."),
            "steps": oas.told(oas.array(PERCENT), "The weights; by default 1, 5, 25, 50, 100."),
            "version": oas.told(oas.TEXT, "The version; needed only if there are several beside the base."),
            "dry_run": {**oas.FLAG, "default": False, "description": "Only say what would be done."},
        },
        description="Raises the weight of a version by itself, and takes it back.",
    ),
}
SCHEMAS: oas.Document = {
    "TrafficRequest": {
        "description": "Weights by version alone, or the parts to change; null removes a part.",
        "anyOf": [
            _by_name(PERCENT, "Weights by version."),
            oas.record({name: {**schema, "nullable": True} for name, schema in _PLAN.items()}),
        ],
    },
    "Traffic": oas.record(
        {
            "modelName": oas.TEXT,
            "default": oas.told(oas.TEXT, "The default version, which gets everything without weights."),
            **_PLAN,
            "effective": _by_name(PERCENT, "What each version gets now: nothing without a ready worker."),
            "promotion": PROMOTION,
        },
        "modelName",
        "default",
        "effective",
    ),
    "Shadows": oas.record(
        {
            "modelName": oas.TEXT,
            "shadows": _by_name(
                oas.record(
                    {
                        "percent": PERCENT,
                        "compare": oas.TEXT,
                        "tolerance": _NUMBER,
                        "waiting": oas.told(oas.COUNT, "Copies that wait to be sent."),
                        "copies": _by_name(oas.COUNT, "Copies by what became of them."),
                        "failed": oas.told(oas.COUNT, "Copies that failed although the primary did not."),
                        "agreement": oas.told(_SHARE, "The share of compared answers that agreed."),
                        "latency": oas.told(
                            _both(oas.record(dict.fromkeys(("p50", "p90", "p99"), _NUMBER))), "Milliseconds."
                        ),
                        "batchSize": oas.told(_both(_NUMBER), "The mean."),
                        "differences": oas.array(
                            oas.record(
                                {
                                    "requestId": oas.TEXT,
                                    "reason": oas.TEXT,
                                    "status": _both(oas.WHOLE),
                                    "latency": oas.told(_both(_NUMBER), "Milliseconds."),
                                    "batchId": _both(oas.TEXT),
                                    "batchSize": _both(oas.WHOLE),
                                    "bodies": oas.told(
                                        oas.record(dict.fromkeys(("request", "primary", "shadow"), oas.TEXT)),
                                        "How they begin; only with `shadow_bodies`.",
                                    ),
                                }
                            ),
                            "The last ones, the newest first.",
                        ),
                    }
                ),
                "By version.",
            ),
        },
        "modelName",
        "shadows",
    ),
}
_TRAFFIC = oas.ref("Traffic")
_SHOW = {
    "get": oas.operation(
        "Management",
        "describeTraffic",
        "Which version gets which share of a model's requests.",
        oas.answers("What was asked for, and what holds now.", _TRAFFIC, 404),
    )
}
_CHANGE = {
    "put": oas.operation(
        "Management",
        "changeTraffic",
        "Divide a model's requests among its versions, copy them to a shadow, promote a version.",
        oas.answers("The traffic was changed.", _TRAFFIC, 400, 404, 413),
        body=oas.json_body(
            "Weights by version alone, or the parts to change.",
            oas.ref("TrafficRequest"),
            example={"1.0": 90, "2.0": 10},
        ),
    )
}
_DROP = {
    "delete": oas.operation(
        "Management",
        "dropTraffic",
        "Send all of a model's requests to its default version again.",
        oas.answers("The default version gets everything.", _TRAFFIC, 404),
    )
}
_SHADOWS = oas.operation(
    "Management",
    "describeShadows",
    "How the answers of a model's shadows compare.",
    oas.answers("Each shadow, with the last differences.", oas.ref("Shadows"), 404),
)
