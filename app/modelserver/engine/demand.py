"""What a worker needs on the machines that it is placed on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources of one worker, as Ray counts them; ``memory`` in bytes.

    ``label_selector``: the labels that its node must have. ``placement``: ``spread`` puts workers, or the
    processes of one, on different nodes as far as possible, ``pack`` on as few as possible.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    placement: str = "spread"

    def share(self, count: int) -> Demand:
        """What each of ``count`` processes needs. Raises ValueError if the GPUs cannot be shared."""
        gpus = self.num_gpus / count
        if gpus > 1 and not gpus.is_integer():
            raise ValueError(f"num_gpus={self.num_gpus:g} cannot be shared by {count} processes")
        return replace(
            self,
            num_cpus=_rounded(self.num_cpus / count),
            num_gpus=_rounded(gpus),
            memory=self.memory // count,
            custom={name: _rounded(amount / count) for name, amount in self.custom.items()},
        )


def _rounded(amount: float) -> float:
    """Rounds down to a ten-thousandth, as Ray counts: all shares together fit where the whole does."""
    return math.floor(amount * 10_000) / 10_000
