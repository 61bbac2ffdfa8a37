"""The option ``resources``: what a worker needs on the machine that it is placed on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from modelserver.engine.demand import Demand
from modelserver.models.options.values import LARGEST_SIZE, Values, excerpt

LOCAL = "local"


def resources() -> Values:
    """``local``, or a mapping of resources as Ray counts them; a :class:`Demand` when read."""
    return Values("`local`, or a mapping of resources", read_resources)


def read_resources(value: object) -> Demand | str:
    """The value as a demand. Raises ValueError with a text that ends a sentence."""
    if value == LOCAL:
        return LOCAL
    if not isinstance(value, dict):
        raise ValueError("local or a mapping is needed")  # noqa: TRY004 - as for all values
    unknown = [name for name in value if name not in _READ]
    if unknown:
        raise ValueError(f"{excerpt(unknown[0])} is unknown, one of {', '.join(_READ)} is needed")
    return Demand(**{name: _READ[name](name, part) for name, part in value.items()})


def parse_resources(text: str) -> Demand | str:
    """As :func:`read_resources`, from JSON."""
    return read_resources(json.loads(text))


def _amount(name: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise ValueError(f"{name}={excerpt(value)}: a number of at least 0 is needed")


def _bytes(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_SIZE:
        return value
    raise ValueError(f"{name}={excerpt(value)}: a number of bytes is needed")


def _amounts(name: str, value: object) -> dict[str, float]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _amount(f"{name}.{key}", amount) for key, amount in value.items()}
    raise ValueError(f"{name}={excerpt(value)}: a mapping of names to numbers is needed")


def _texts(name: str, value: object) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(x, str) for pair in value.items() for x in pair):
        return dict(value)
    raise ValueError(f"{name}={excerpt(value)}: a mapping of texts to texts is needed")


_READ: dict[str, Callable[[str, object], Any]] = {
    "num_cpus": _amount,
    "num_gpus": _amount,
    "memory": _bytes,
    "custom": _amounts,
    "label_selector": _texts,
}
