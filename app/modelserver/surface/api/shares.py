"""What the description of a version says of its part in the model's traffic."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

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


def moment(seconds: float) -> str:
    """A time since the epoch as text."""
    found = datetime.fromtimestamp(seconds, timezone.utc)
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{found.microsecond // 1000:03d}Z"
