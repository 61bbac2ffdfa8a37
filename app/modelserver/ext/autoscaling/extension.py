"""Models whose number of workers follows their load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.extension import Host
from modelserver.models.version import ModelVersion

if TYPE_CHECKING:
    from modelserver.ext.autoscaling.autoscaler import Autoscaler


async def extend(host: Host) -> None:
    """Always on: any model may set ``autoscale``."""
    follow = LateAutoscaler().follow
    host.prepare(follow, changed=follow)


class LateAutoscaler:
    """An autoscaler that is imported for the first model that needs it."""

    def __init__(self) -> None:
        self._autoscaler: Autoscaler | None = None

    def follow(self, model: ModelVersion) -> None:
        """Scales the workers of a version as its options say."""
        options = model.options
        if not options.autoscale:
            if self._autoscaler is not None:
                self._autoscaler.follow(model.pool, None)
            return
        from modelserver.ext.autoscaling.autoscaler import Autoscaler  # noqa: PLC0415 - see above
        from modelserver.ext.autoscaling.scaling import ScalingRule  # noqa: PLC0415

        if self._autoscaler is None:
            self._autoscaler = Autoscaler()
        rule = ScalingRule(
            target_wait=options.autoscale_target_wait / 1000,
            up_pause=options.autoscale_up_pause / 1000,
            down_pause=options.autoscale_down_pause / 1000,
        )
        self._autoscaler.follow(model.pool, rule)
