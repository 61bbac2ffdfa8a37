"""Annotated functions, as the server calls them."""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 - read at run time
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.typed.function import FunctionHandler

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Point:
    x: float
    y: float


def shout(text: str) -> str:
    return text.upper()


def longest(rows: list[str]) -> list[str]:
    return [max(rows, key=len)] * len(rows)


def total(numbers: list[float]) -> float:
    return sum(numbers)


def mean(row: numpy.ndarray) -> float:
    return float(row.mean())


def centred(rows: numpy.ndarray) -> numpy.ndarray:
    return rows - rows.mean(axis=0)


def norm(point: Point, power: int = 2) -> float:
    return (point.x**power + point.y**power) ** (1 / power)


def run(function: Callable[[Any], Any], *rows: Any) -> tuple[Any, dict[int, tuple[int, str]]]:
    """The answers, and the rows that were rejected."""
    context, handler = Context("m", "/", None, 8, None, "0"), FunctionHandler(function)
    handler.initialize(context)
    context._ms_begin(BatchState([str(n) for n in range(len(rows))], properties=[{}] * len(rows)))
    data = [{"body": row} for row in rows]
    return handler.handle(data, context), context._ms_rejections


@pytest.mark.parametrize(
    ("function", "rows", "answers"),
    [
        (shout, ["a", "b"], ["A", "B"]),
        (longest, ["a", "bb"], ["bb", "bb"]),
        (total, [[1, 2], [3]], [3.0, 3.0]),
        (mean, [[1, 3]], [2.0]),
        (norm, [{"x": 3, "y": 4}], [5.0]),
    ],
)
def test_rows_are_what_the_annotations_say(
    function: Callable[[Any], Any], rows: list[Any], answers: list[Any]
) -> None:
    """A function from list to list gets the batch, any other one row at a time."""
    assert run(function, *rows) == (answers, {})


def test_an_array_to_an_array_is_a_batch() -> None:
    """It gets the rows stacked, as predict does."""
    answers, _ = run(centred, [1.0, 2.0], [3.0, 2.0])

    assert numpy.array(answers).tolist() == [[-1, 0], [1, 0]]


def test_a_generator_is_streamed() -> None:
    """For each row, or with one part for every row in each step."""

    def letters(text: str) -> Iterator[str]:
        yield from text

    def steps(rows: list[str]) -> Iterator[list[str]]:
        yield rows
        yield [row + row for row in rows]

    for function, parts in ((letters, ["a", "b"]), (steps, ["ab", "abab"])):
        (answer,), _ = run(function, "ab")
        assert isinstance(answer, GeneratorType)
        assert list(answer) == parts


def test_the_annotations_are_the_signature() -> None:
    """Those of one row and one answer, whichever of the two the function takes."""
    for function in (shout, longest):
        handler = FunctionHandler(function)
        handler.initialize(Context("m", "/", None, 8, None, "0"))
        signature = handler._ms_signature()

        assert signature.inputs.tensors == (("input_0", "BYTES", (-1,)),)
        assert signature.inputs.media == signature.outputs.media == "text/plain"


def test_annotations_that_cannot_be_used() -> None:
    """The function is named, and what is wrong with it."""

    async def waits(text: str) -> str:
        return text

    def unreadable(value: open) -> str:  # type: ignore[valid-type]
        return str(value)

    with pytest.raises(TypeError, match="waits is an async def"):
        run(waits, "a")
    with pytest.raises(TypeError, match="rows cannot be decoded as unreadable is annotated"):
        run(unreadable, "a")
