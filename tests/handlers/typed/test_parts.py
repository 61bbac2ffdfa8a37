"""Steps of a batch, taken apart into the parts of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from modelserver_handlers.typed.parts import by_row

if TYPE_CHECKING:
    from collections.abc import Generator


def test_rows_may_be_read_at_different_speeds() -> None:
    """Each row gets all its parts, in order, whichever is read first."""
    first, second = by_row(([step, -step] for step in range(3)), 2)

    assert next(first) == 0
    assert list(second) == [0, -1, -2]
    assert list(first) == [1, 2]


def test_an_error_reaches_all_rows() -> None:
    """After the parts that came before it; no row ends as if it were complete."""

    def steps() -> Generator[list[int], None, None]:
        yield [1, 2]
        raise KeyError("broken")

    rows = by_row(steps(), 2)

    assert [next(row) for row in rows] == [1, 2]
    for row in rows:
        with pytest.raises(KeyError, match="broken"):
            next(row)


def test_a_step_has_a_part_for_every_row() -> None:
    """Another number is an error, not a shorter stream."""
    rows = by_row(iter_of([[1]]), 2)

    with pytest.raises(ValueError, match="yielded 1 parts, one for each of the 2 rows"):
        next(rows[0])


def test_the_generator_is_closed_with_its_last_row() -> None:
    """Rows whose clients are gone do not keep their parts, and when none is left the work stops."""
    closed: list[bool] = []

    def steps() -> Generator[list[int], None, None]:
        try:
            while True:
                yield [1, 2]
        finally:
            closed.append(True)

    first, second = by_row(steps(), 2)
    next(first), next(second)
    first.close()
    assert (next(second), closed) == (2, [])
    second.close()

    assert closed == [True]


def iter_of(steps: list[Any]) -> Generator[Any, None, None]:
    yield from steps
