"""What the applications of all listeners need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import Settings
from modelserver.surface.http.content import MAX_PARAMETERS_BODY
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.management import ManagementApi
    from modelserver.surface.auth.verifier import RequiredTokens

Role = Literal["inference", "management", "metrics"]
AddRoutes: TypeAlias = "Callable[[Application, Services], None]"
"""Adds routes to the application of a listener."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the applications of all listeners need. ``tokens`` is None where none are asked for."""

    registry: Registry
    metrics: ServerMetrics
    settings: Settings
    tokens: RequiredTokens | None
    off_loop: OffLoop
    intake: Intake
    outgoing: Outgoing
    shared: SharedMemory

    @property
    def limits(self) -> RequestLimits:
        """The limits of one inference request."""
        return RequestLimits(self.settings.max_request_instances, self.settings.max_request_tensors)

    def largest(self, role: Role) -> int:
        """Bytes that a message to a listener may have: those of management only have parameters."""
        largest = self.settings.max_request_size
        return min(largest, MAX_PARAMETERS_BODY) if role == "management" else largest

    @property
    def management(self) -> ManagementApi:
        """What clients may do with the models."""
        from modelserver.surface.api.management import ManagementApi  # noqa: PLC0415 - with FastAPI

        return ManagementApi(self.registry, model_api=self.settings.enable_model_api)
