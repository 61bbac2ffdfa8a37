"""Networks that were exported for a fixed number of rows: they compute a batch in parts of that number."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ROWS: Final = "_ms_fixed_rows"


def fixed_rows(shapes: Iterable[Sequence[Any]]) -> int | None:
    """The number of rows that all inputs of these shapes are fixed to; None if any number may come."""
    firsts = [next(iter(shape), None) for shape in shapes]
    first = firsts[0] if firsts else None
    is_fixed = isinstance(first, int) and first > 0
    return first if is_fixed and all(isinstance(each, int) and each == first for each in firsts) else None


def fixed_rows_of(network: Any) -> int | None:
    """The rows that a network computes at a time; None if any number."""
    rows = getattr(network, _ROWS, None)
    return rows if isinstance(rows, int) else None


def compute_in_parts(network: Any, rows: int) -> None:
    """Let a program, which takes exactly ``rows`` rows, take any number."""
    kind: Any = type(network)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return in_parts(partial(kind.__call__, self), rows, args, kwargs)

    # Not another forward: the program checks its inputs before that.
    own = type(kind.__name__, (kind,), {"__call__": call})
    network.__class__ = own
    setattr(network, _ROWS, rows)


def in_parts(run: Callable[..., Any], rows: int, args: Any, kwargs: Any) -> Any:
    """The outputs of ``run`` for all rows of its tensors, ``rows`` at a time; the last part is filled up.

    Raises ValueError if an output has no row for each row of input.
    """
    counts = {
        len(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()
    }
    count = counts.pop() if len(counts) == 1 else 0
    if count in (0, rows):
        return run(*args, **kwargs)
    outputs = []
    for first in range(0, count, rows):
        part_args, part_kwargs = tree_map(lambda leaf: _part(leaf, first, rows), (args, kwargs))  # noqa: B023
        outputs.append(run(*part_args, **part_kwargs))
    return tree_map(lambda *parts: _joined(parts, rows)[:count], *outputs)


def _part(leaf: Any, first: int, rows: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return leaf
    part = leaf[first : first + rows]
    missing = rows - len(part)
    return torch.cat([part, part[-1:].expand(missing, *part.shape[1:])]) if missing else part


def _joined(parts: Sequence[Any], rows: int) -> torch.Tensor:
    if not all(isinstance(part, torch.Tensor) and part.dim() and len(part) == rows for part in parts):
        raise ValueError(f"an output of the network has no row for each of the {rows} rows of its input")
    return torch.cat(list(parts))
