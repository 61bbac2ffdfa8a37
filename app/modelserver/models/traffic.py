"""Carries out what an operator wants of the traffic between the versions of a model.

Imported by a server that uses it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.errors import BadRequest
from modelserver.ext.rollout.meters import Meters
from modelserver.ext.rollout.plan import Plan, check, patched
from modelserver.ext.rollout.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from modelserver.models.preparation import Preparation
    from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")


class Directions:
    """The traffic of all models.

    Args:
        preparation: has the metrics, and the bytes of bodies that are kept.
        traffics: that of each model that has any.
        changed: called when a plan has changed by itself.
    """

    def __init__(
        self,
        preparation: Preparation,
        traffics: Callable[[], Iterable[Traffic[ModelVersion]]],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._keep = preparation.shadow_bodies
        self._changed = changed
        self._saving: set[asyncio.Future[Any]] = set()
        self._meters = Meters(preparation.metrics, traffics)

    def carry_out(
        self,
        name: str,
        versions: Mapping[str, ModelVersion],
        default: str,
        plan: Plan,
        traffic: Traffic[ModelVersion] | None,
        *,
        stopped: str = "",
    ) -> Traffic[ModelVersion]:
        """The model's ``traffic`` with this plan; ``stopped``: why a promotion ends, if it does.

        Raises BadRequest for a plan that these versions cannot carry out.
        """
        check(plan, versions, default)
        _check_sequences(plan, versions, default)
        if traffic is None:
            traffic = Traffic(name, keep=self._keep, on_change=self._save)
            traffic.follow(versions, default)
        traffic.adopt(plan, stopped=stopped)
        _log.info("Model %s: traffic %s", name, msgspec.json.encode(plan).decode())
        return traffic

    def _save(self) -> None:
        task = asyncio.ensure_future(self._changed())
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)


def changed_plan(traffic: Traffic[ModelVersion] | None, document: object) -> tuple[Plan, str]:
    """The plan with the parts that a document gives, and why a promotion ends with that, if it does.

    Weights that are set by hand end it, unless a promotion is given too. Raises BadRequest.
    """
    before = Plan() if traffic is None else traffic.plan
    plan = patched(before, document)
    if plan.weights != before.weights and plan.promote is not None and plan.promote == before.promote:
        return msgspec.structs.replace(plan, promote=None), "weights were set"
    return plan, "it was removed"


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
