"""Models whose requests belong to sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import SequenceHeaders
from modelserver.extension import Host
from modelserver.models.options.resolve import ModelOptions

if TYPE_CHECKING:
    from modelserver.ext.sequences.affinity import SequenceAffinity


async def extend(host: Host) -> None:
    """Always on: any model may have sequences. What it needs is imported for the first one."""
    host.pool("sequences", make_affinity)


def make_affinity(limits: PoolLimits, options: ModelOptions, names: SequenceHeaders) -> SequenceAffinity:
    """The affinity of a model's workers."""
    from modelserver.ext.sequences.affinity import sequence_affinity  # noqa: PLC0415 - see above

    return sequence_affinity(limits, options, names)
