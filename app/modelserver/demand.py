"""What a worker needs on the machine that it is placed on."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - helpers read annotations at run time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources of one worker, as Ray counts them; ``memory`` in bytes.

    ``label_selector``: the labels that its node must have. ``placement``: ``spread`` puts workers on
    different nodes as far as possible, ``pack`` on as few as possible.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    placement: str = "spread"
