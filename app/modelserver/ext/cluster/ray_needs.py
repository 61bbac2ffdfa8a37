"""Whether the nodes of a Ray cluster could ever meet a demand, and what is free, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LIST = re.compile(r"(!?)in\((.*)\)")
_GIB = 1 << 30


def needed(options: Mapping[str, Any]) -> dict[str, float]:
    """The amounts that an actor with these options takes, by Ray's names."""
    amounts = {
        "CPU": options.get("num_cpus", 0),
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
        **options.get("resources", {}),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def impossible(options: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Why none of these nodes (as in ``ray.nodes()``) could run the actor, were it idle; else empty."""
    alive = [node for node in nodes if node["Alive"]]
    selector: Mapping[str, str] = options.get("label_selector", {})
    fitting = [
        node
        for node in alive
        if all(_admits(expression, node.get("Labels", {}).get(name)) for name, expression in selector.items())
    ]
    if selector and not fitting:
        return "no node has the labels " + ", ".join(f"{name}={value}" for name, value in selector.items())
    amounts = needed(options)
    totals = [node["Resources"] for node in fitting]
    if any(all(total.get(name, 0) >= amount for name, amount in amounts.items()) for total in totals):
        return ""
    where = "no node with these labels has" if selector else "no node has"
    for name, amount in amounts.items():
        most = max((total.get(name, 0) for total in totals), default=0)
        if most < amount:
            return f"{where} {_amount(name, amount)}, at most {_amount(name, most)}"
    return f"{where} " + " with ".join(_amount(name, amount) for name, amount in amounts.items())


def situation(free: Mapping[str, float], total: Mapping[str, float]) -> str:
    """Describes the free and total resources, as Ray sums them over the nodes."""
    names = [name for name in total if not name.startswith("node:") and name != "object_store_memory"]
    order = sorted(names, key=lambda name: ({"CPU": 0, "GPU": 1, "memory": 2}.get(name, 3), name))
    sums = ", ".join(f"{_number(name, free.get(name, 0))} of {_amount(name, total[name])}" for name in order)
    return f"Ray has free {sums}" if sums else "Ray has no nodes"


def _amount(name: str, amount: float) -> str:
    return f"{_number(name, amount)} {'GiB memory' if name == 'memory' else name}"


def _number(name: str, amount: float) -> str:
    return f"{round(amount / _GIB if name == 'memory' else amount, 2):g}"


def _admits(expression: str, value: str | None) -> bool:
    """Whether a label's value fits: ``x``, ``!x``, ``in(x, y)`` or ``!in(x, y)``."""
    listed = _LIST.fullmatch(expression)
    if listed:
        negated, values = bool(listed[1]), {part.strip() for part in listed[2].split(",")}
    else:
        negated, values = expression.startswith("!"), {expression.removeprefix("!")}
    return (value in values) != negated
