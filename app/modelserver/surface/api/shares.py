"""What the description of a version says of its part in the model's traffic."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.surface.api import descriptions as oas

if TYPE_CHECKING:
    from modelserver.ext.rollout.promoting import Progress
    from modelserver.ext.rollout.traffic import Traffic
    from modelserver.models.version import ModelVersion


def describe_share(model: ModelVersion) -> dict[str, Any] | None:
    """The version's weight, whether it is a shadow, and its promotion; None without traffic of the model."""
    traffic, version = model.traffic, model.version
    if traffic is None:
        return None
    promotion = traffic.promotion
    concerned = promotion is not None and version in (promotion.version, promotion.base)
    shadow = traffic.plan.shadow.get(version)
    return {
        "wanted": traffic.weight_of(version),
        "effective": traffic.effective.get(version, 0),
        "sticky": traffic.plan.sticky or None,
        "shadow": None if shadow is None else shadow.percent,
        "promotion": describe_promotion(traffic) if concerned else None,
    }


def describe_promotion(traffic: Traffic[ModelVersion]) -> dict[str, Any] | None:
    """The promotion under way, or how the last one ended; None without one."""
    promotion = traffic.promotion
    if promotion is None:
        return None
    progress = traffic.progress
    return {
        "version": promotion.version,
        "base": promotion.base,
        "state": promotion.state,
        "reason": promotion.reason or None,
        "since": moment(promotion.since),
        **({} if progress is None else _describe_progress(progress)),
    }


def _describe_progress(progress: Progress) -> dict[str, Any]:
    slowest = {name: milliseconds(seconds) for name, seconds in progress.percentiles.items()}
    return {"next": progress.next_weight, **msgspec.to_builtins(progress.seen), "p99": slowest or None}


def milliseconds(seconds: float | None) -> float | None:
    """As milliseconds with three digits after the point."""
    return None if seconds is None else round(seconds * 1e3, 3)


PERCENT: oas.Document = {"type": "number", "minimum": 0, "maximum": 100}
PROMOTION = oas.record(
    {
        "version": oas.told(oas.TEXT, "The version that is promoted."),
        "base": oas.told(oas.TEXT, "The one that it replaces."),
        "state": {**oas.TEXT, "enum": ["watching", "promoted", "rolled back", "stopped"]},
        "reason": oas.told(oas.TEXT, "Why the weight was changed last, or would have been in a dry run."),
        "since": oas.TIME,
        "next": oas.told(PERCENT, "The weight of the next step."),
        "answers": oas.told(oas.COUNT, "Answers of the version since the last step, to clients and copies."),
        "failed": oas.told(oas.COUNT, "How many of them failed."),
        "slow": oas.told(oas.COUNT, "How many were slower than p99_ratio allows."),
        "compared": oas.told(oas.COUNT, "Answers that were compared with the other version's."),
        "differed": oas.told(oas.COUNT, "How many of them differed."),
        "p99": oas.told(
            {"type": "object", "additionalProperties": {"type": "number"}},
            "The 99th percentile of latency of both versions, in milliseconds.",
        ),
    },
    description="The promotion under way, or how the last one ended.",
)
SHARE = oas.record(
    {
        "wanted": oas.told(PERCENT, "Percent of the requests without a version that it is to get."),
        "effective": oas.told(PERCENT, "Percent that it gets now: nothing without a ready worker."),
        "sticky": oas.told(oas.TEXT, "The header that decides."),
        "shadow": oas.told(PERCENT, "Percent of the others' requests of which it gets copies."),
        "promotion": PROMOTION,
    },
    description="Its part in the traffic between the versions; absent if that is not set.",
)


def moment(seconds: float) -> str:
    """A time since the epoch as text."""
    found = datetime.fromtimestamp(seconds, timezone.utc)
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{found.microsecond // 1000:03d}Z"
