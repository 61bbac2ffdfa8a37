"""Rows of tensors as handlers get them: one by one, and a whole batch in one piece (design 9, "Rows").

Importing this imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, overload


class TensorRows(list[Any]):
    """A batch whose rows are tensors: ``{"data": row}``, or ``{name: row, ...}`` for several.

    ``tensors`` has the same memory, stacked: name of the input to a tensor whose first dimension is the
    rows. The rows are views of it. A slice of the rows has the slice of the tensors.
    """

    def __init__(self, rows: Sequence[Any], tensors: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self.tensors = dict(tensors)
        self._versions = self._seen()

    @overload
    def __getitem__(self, place: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> TensorRows: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        if not isinstance(place, slice):
            return super().__getitem__(place)
        return TensorRows(
            super().__getitem__(place), {name: tensor[place] for name, tensor in self.tensors.items()}
        )

    def pick(self, places: Sequence[int]) -> TensorRows:
        """These rows, as separate dicts; copied only if they are not adjacent."""
        first, last = places[0], places[-1]
        if list(places) == list(range(first, last + 1)):
            chosen = self[first : last + 1]
        else:
            tensors = {name: tensor[list(places)] for name, tensor in self.tensors.items()}
            chosen = TensorRows([self[place] for place in places], tensors)
        return TensorRows([dict(row) for row in chosen], chosen.tensors)

    @property
    def changed(self) -> bool:
        """Whether something was computed in place, so that the rows are no longer what the client sent."""
        return self._seen() != self._versions

    def _seen(self) -> list[Any]:
        """torch counts changes, also through views; numpy's arrays are read-only here."""
        return [getattr(tensor, "_version", 0) for tensor in self.tensors.values()]


def stacked(rows: Any) -> dict[str, Any] | None:
    """The tensors of a batch, stacked; None if its rows are not tensors.

    Rows that were taken from their batch one by one are stacked again.
    """
    if isinstance(rows, TensorRows):
        return rows.tensors
    if not isinstance(rows, list) or not rows or not all(map(_is_row, rows)):
        return None
    import torch  # noqa: PLC0415 - the rows are of it

    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def rows_of(outputs: Any) -> list[Any]:
    """A network's outputs, whose first dimension is the rows, as one answer per row.

    Several outputs (a tuple, list or dict of tensors) are a tuple or dict of tensors in each row.
    """
    if isinstance(outputs, dict):
        columns = [value.detach().cpu() for value in outputs.values()]
        return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(outputs, (tuple, list)):
        return list(zip(*(value.detach().cpu() for value in outputs), strict=True))
    return list(outputs.detach().cpu())


def _is_row(row: Any) -> bool:
    """A dict of tensors of torch."""
    if not isinstance(row, dict) or not row:
        return False
    return all(type(value).__name__ == "Tensor" for value in row.values())
