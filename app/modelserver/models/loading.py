"""Loading the models of a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.models.version import FailedVersion
from modelserver.telemetry.text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from modelserver.models.version import ModelVersion


def listed(models: Iterable[ModelVersion]) -> str:
    """Names and versions in words, with the reason for what could not be restored."""
    return "; ".join(
        f"{model.name} {model.version}"
        + (f" FAILED ({shortened(model.failure, 200)})" if isinstance(model, FailedVersion) else "")
        for model in models
    )
