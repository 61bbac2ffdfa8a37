"""Carries out what operators want of the traffic between the versions of models.

What that needs is imported for the first model that uses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import BadRequest
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion

if TYPE_CHECKING:
    from modelserver.ext.rollout.meters import Meters
    from modelserver.ext.rollout.plan import Plan
    from modelserver.ext.rollout.traffic import ModelTraffic

_log = logging.getLogger("modelserver.models")


class TrafficRouter:
    """The traffic of all models.

    Args:
        registry: of the models.
        metrics: of the server.
        keep: bytes of bodies that are kept where a shadow's answer differs, 0 for none.
    """

    def __init__(self, registry: Registry, metrics: ServerMetrics, keep: int = 0) -> None:
        self._registry = registry
        self._metrics = metrics
        self._keep = keep
        self._meters: Meters | None = None
        self._saving: set[asyncio.Future[Any]] = set()

    def check(self, document: Any) -> None:
        """Raises BadRequest for a document that no versions of a model could carry out."""
        from modelserver.ext.rollout.plan import check_form  # noqa: PLC0415 - for servers that use it

        check_form(document)

    def direct(self, name: str, document: Any, reason: str = "") -> None:
        """Carries out the document, which :class:`~modelserver.models.version.Router` describes."""
        if document is None:
            self._registry.set_traffic(name, None)
            return
        from modelserver.ext.rollout.plan import Plan, patched  # noqa: PLC0415 - for servers that use it

        self._carry_out(name, patched(Plan(), document), reason)

    async def change(self, name: str, document: object) -> None:
        """Changes the parts of the model's traffic that the document has (docs/rollouts.md).

        Weights that are set by hand end a promotion, unless the document has one, too. Raises ModelNotFound,
        BadRequest.
        """
        plans = await asyncio.to_thread(import_module, "modelserver.ext.rollout.plan")
        await asyncio.to_thread(import_module, "modelserver.ext.rollout.traffic")
        async with self._registry.lock(name):
            traffic = traffic_of(self._registry.get(name))
            before: Plan = plans.Plan() if traffic is None else traffic.plan
            plan: Plan = plans.patched(before, document)
            reason = "it was removed"
            if plan.weights != before.weights and plan.promote is not None and plan.promote == before.promote:
                plan, reason = msgspec.structs.replace(plan, promote=None), "weights were set"
            self._carry_out(name, plan, reason)
        await self._registry.changed()

    async def drop(self, name: str) -> None:
        """The default version gets all requests that name no version again. Raises ModelNotFound."""
        async with self._registry.lock(name):
            self._registry.get(name)
            self._registry.set_traffic(name, None)
        await self._registry.changed()

    def _carry_out(self, name: str, plan: Plan, reason: str) -> None:
        """``reason``: why a promotion ends, if it does. Raises BadRequest."""
        from modelserver.ext.rollout.meters import Meters  # noqa: PLC0415 - for servers that use it
        from modelserver.ext.rollout.plan import check  # noqa: PLC0415
        from modelserver.ext.rollout.traffic import ModelTraffic  # noqa: PLC0415

        model = self._registry.get(name)
        versions = {version.version: version for version in self._registry.versions(name)}
        check(plan, versions, model.version)
        _check_sequences(plan, versions, model.version)
        if self._meters is None:
            self._meters = Meters(self._metrics, self._traffics)
        traffic = traffic_of(model)
        if traffic is None:
            traffic = ModelTraffic(name, keep=self._keep, on_change=self._save)
            traffic.follow(versions, model.version)
        traffic.adopt(plan, stopped=reason)
        _log.info("Model %s: traffic %s", name, msgspec.json.encode(plan).decode())
        self._registry.set_traffic(name, traffic if plan or traffic.promotion else None)

    def _traffics(self) -> list[ModelTraffic]:
        traffics = map(traffic_of, self._registry.defaults())
        return [traffic for traffic in traffics if traffic is not None]

    def _save(self) -> None:
        task = asyncio.ensure_future(self._registry.changed())
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)


def traffic_of(model: ModelVersion) -> ModelTraffic | None:
    """The traffic of the version's model, None if its default version gets all requests."""
    # Only this extension sets it.
    return model.traffic  # type: ignore[return-value]


def _check_sequences(plan: Plan, versions: Mapping[str, ModelVersion], default: str) -> None:
    """Raises BadRequest if a request of a sequence would have to go where it cannot, or to two versions."""
    weighted = {default, *plan.weights}
    stateful = [each for each in (*weighted, *plan.shadow) if versions[each].sequence_headers is not None]
    if stateful and plan.shadow:
        raise BadRequest(
            f"shadow: requests of version {stateful[0]} belong to sequences, which have a state."
        )
    if stateful and len(stateful) < len(weighted):
        raise BadRequest("weights: requests of some of the versions belong to sequences, of others do not.")
