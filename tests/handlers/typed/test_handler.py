from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Annotated, Any

import msgspec
import numpy
import numpy.typing
import pydantic
import pytest
import torch

import modelserver
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.tensor_rows import TensorRows
from modelserver_handlers.typed.handler import FunctionHandler, by_row


class Bench:
    def __init__(self, handler: Callable[[], Any]) -> None:
        self.context = Context("m", "/", None, 8, None, "0")
        self.handler = handler()
        self.handler.initialize(self.context)

    def run(self, *rows: Any, **properties: str) -> Any:
        return self.batch(list(rows), **properties)

    def batch(self, data: Any, **properties: str) -> Any:
        state = BatchState([str(n) for n in range(len(data))], properties=[properties] * len(data))
        self.context._ms_begin(state)
        return self.handler.handle(data, self.context)

    @property
    def rejected(self) -> dict[int, tuple[int, str]]:
        return self.context._ms_rejections


class Doubler(modelserver.Handler):
    def predict(self, rows):
        return [2 * row for row in rows]


class Texts(modelserver.Handler):
    def load(self, context: Any) -> None:
        self.suffix = "!" * int(context.system_properties["batch_size"] > 0)

    def predict(self, rows: list[str]) -> list[str]:
        return [row + self.suffix for row in rows]


def test_rows_are_plain_values():
    assert Bench(Doubler).run({"body": 4}, {"body": bytearray(b"[1]")}) == [8, [1, 1]]
    assert Bench(Texts).run({"body": "a"}) == ["a!"]


def test_a_bad_row_fails_alone_and_does_not_reach_predict():
    bench = Bench(Texts)

    assert bench.run({"body": "a"}, {"body": 3}, {"body": "b"}) == ["a!", None, "b!"]
    assert bench.rejected == {1: (400, "a text is needed, got 3")}

    class Never(Texts):
        def predict(self, rows: list[str]) -> list[str]:
            raise AssertionError

    never = Bench(Never)
    assert never.run({"body": 3}) == [None]
    assert never.rejected[0][0] == 400


def test_rows_are_prepared_and_answers_finished():
    class Counted(modelserver.Handler):
        def prepare(self, row: str) -> int:
            if not row:
                raise ValueError("nothing to count")
            if row == "?":
                raise PredictionException("no questions", 422)
            return len(row)

        def predict(self, rows: list[int]) -> list[int]:
            return [row * 10 for row in rows]

        def answer(self, row: int) -> str:
            return f"{row} points"

    bench = Bench(Counted)

    assert bench.run({"body": "ab"}, {"body": ""}, {"body": "?"}) == ["20 points", None, None]
    assert bench.rejected == {1: (400, "nothing to count"), 2: (422, "no questions")}
    signature = bench.handler._ms_signature()
    assert signature.inputs.media == "text/plain"
    assert signature.outputs.schema == {"type": "string"}


class Whole(modelserver.Handler):
    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        assert isinstance(rows, torch.Tensor)
        self.seen = rows
        return rows * 2


def test_a_tensor_alone_is_the_batch():
    bench = Bench(Whole)
    tensor = torch.ones(2, 3)
    rows = TensorRows([{"data": row} for row in tensor], {"input": tensor})

    assert [row.tolist() for row in bench.run({"body": [1.0, 2.0]}, {"body": [3.0, 4.0]})] == [[2, 4], [6, 8]]
    assert torch.equal(bench.batch(rows)[1], torch.full((3,), 2.0))
    assert bench.handler.seen.data_ptr() == tensor.data_ptr()


def test_an_array_alone_is_the_batch():
    class Arrays(modelserver.Handler):
        def predict(self, rows: numpy.typing.NDArray[numpy.float32]) -> numpy.typing.NDArray[numpy.float32]:
            return rows + 1

    bench = Bench(Arrays)
    answers = bench.run({"body": [1, 2]}, {"body": "x"}, {"data": numpy.array([3.0, 4.0])})

    assert [None if row is None else row.tolist() for row in answers] == [[2, 3], None, [4, 5]]


class Named(msgspec.Struct):
    name: str


@dataclass
class Sized:
    size: int


class Aged(pydantic.BaseModel):
    age: int


@pytest.mark.parametrize(
    ("outputs", "sent"),
    [
        ([Named("a")], [{"name": "a"}]),
        ([[Sized(1)]], [[{"size": 1}]]),
        ([Aged(age=3)], [{"age": 3}]),
        (({"a": 1},), [{"a": 1}]),
        ([None], [None]),
    ],
)
def test_answers_are_plain(outputs, sent):
    class Returns(modelserver.Handler):
        def predict(self, rows):
            return outputs

    assert Bench(Returns).run({"body": 1}) == sent


def test_answers_are_streamed():
    class Counts(modelserver.Handler):
        def predict(self, rows: list[int]) -> list[Iterator[int]]:
            return [(number for number in range(row)) for row in rows]

        def answer(self, row: int) -> str:
            return str(row)

    answers = Bench(Counts).run({"body": 2}, {"body": 3})

    assert all(isinstance(answer, GeneratorType) for answer in answers)
    assert [list(answer) for answer in answers] == [["0", "1"], ["0", "1", "2"]]


class Pictures(modelserver.Handler):
    def predict(self, rows: list[str]) -> list[Annotated[bytes, modelserver.ContentType("image/png")]]:
        if "svg" in rows:
            self.context.set_response_content_type(rows.index("svg"), "image/svg+xml")
        return [b"png"] * len(rows)


class Finished(modelserver.Handler):
    def predict(self, rows: list[str]) -> list[str]:
        return rows

    def answer(self, row: str) -> Annotated[bytes, modelserver.ContentType("image/png")]:
        return row.encode()


@pytest.mark.parametrize("handler", [Pictures, Finished])
def test_annotations_declare_the_type_of_answers(handler):
    bench = Bench(handler)
    bench.run("a", b"\xff", "c")

    types = [bench.context.get_response_content_type(idx) for idx in (0, 2)]
    assert types == ["image/png", "image/png"]
    assert bench.run("", describe="True")[0]["outputs"]["media"] == "image/png"


def test_a_handlers_word_is_stronger_than_its_annotation():
    bench = Bench(Pictures)
    bench.run("a", "svg")

    types = [bench.context.get_response_content_type(idx) for idx in range(2)]
    assert types == ["image/png", "image/svg+xml"]


def test_it_describes_itself():
    bench = Bench(Texts)
    (described,) = bench.run({}, describe="True")

    assert described["inputs"]["tensors"] == (("input_0", "BYTES", (-1,)),)
    with pytest.raises(PredictionException, match="501"):
        bench.run({"body": "a"}, explain="True")


class NoPredict(modelserver.Handler):
    pass


class Async(modelserver.Handler):
    async def predict(self, rows):
        return rows


class OneRow(modelserver.Handler):
    def predict(self, rows: str) -> str:
        return rows


class Misspelt(modelserver.Handler):
    def predcit(self, rows):
        return rows


class Unknown(modelserver.Handler):
    def predict(self, rows: list[NoSuchType]) -> list[str]:  # noqa: F821 - so it is meant
        return rows


class NoRows(modelserver.Handler):
    def predict(self):
        return []


class NoType(modelserver.Handler):
    def predict(self, rows: list[open]) -> list[str]:
        return rows


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (NoPredict, r"NoPredict.predict\(self, rows\) is missing"),
        (Misspelt, r"is missing: it gets the rows of a batch; is it predcit, misspelt\?"),
        (Async, "Async.predict is an async def"),
        (OneRow, r"OneRow.predict is annotated with str, .* list\[str\] is needed"),
        (Unknown, "annotation of Unknown.predict cannot be read: name 'NoSuchType'"),
        (NoRows, r"must take self and one more argument, as in predict\(self, rows\)"),
        (NoType, r"as NoType.predict is annotated: .*open.* is not supported; they can be str, bytes"),
    ],
)
def test_mistakes_are_named_at_load(handler, message):
    with pytest.raises(TypeError, match=message):
        Bench(handler)


def test_it_is_imported_lightly():
    code = (
        "import sys, modelserver; assert not {'msgspec', 'asyncio'} & sys.modules.keys();"
        "modelserver.Handler;"
        "print({'torch', 'numpy', 'pydantic', 'fastapi', 'asyncio'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'Handlr'"):
        modelserver.Handlr  # noqa: B018


def test_each_row_reads_its_parts_until_an_error():
    first, second = by_row(([step, -step] for step in range(3)), 2)

    assert next(first) == 0
    assert list(second) == [0, -1, -2]
    assert list(first) == [1, 2]

    rows = by_row((step for step in [[1]]), 2)
    with pytest.raises(ValueError, match="yielded 1 parts, one for each of the 2 rows"):
        next(rows[0])


def test_an_error_reaches_all_rows():
    def steps() -> Generator[list[int], None, None]:
        yield [1, 2]
        raise KeyError("broken")

    rows = by_row(steps(), 2)

    assert [next(row) for row in rows] == [1, 2]
    for row in rows:
        with pytest.raises(KeyError, match="broken"):
            next(row)


def test_the_generator_is_closed_with_its_last_row():
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
    bench = Bench(lambda: FunctionHandler(function))
    return bench.run(*({"body": row} for row in rows)), bench.rejected


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
def test_rows_are_what_the_annotations_say(function, rows, answers):
    assert run(function, *rows) == (answers, {})


def test_an_array_to_an_array_is_a_batch():
    answers, _ = run(centred, [1.0, 2.0], [3.0, 2.0])
    assert numpy.array(answers).tolist() == [[-1, 0], [1, 0]]


def test_a_generator_is_streamed():
    def letters(text: str) -> Iterator[str]:
        yield from text

    def steps(rows: list[str]) -> Iterator[list[str]]:
        yield rows
        yield [row + row for row in rows]

    for function, parts in ((letters, ["a", "b"]), (steps, ["ab", "abab"])):
        (answer,), _ = run(function, "ab")
        assert isinstance(answer, GeneratorType)
        assert list(answer) == parts


def test_the_annotations_are_the_signature():
    for function in (shout, longest):
        signature = Bench(lambda function=function: FunctionHandler(function)).handler._ms_signature()

        assert signature.inputs.tensors == (("input_0", "BYTES", (-1,)),)
        assert signature.inputs.media == signature.outputs.media == "text/plain"


def test_annotations_that_cannot_be_used():
    async def waits(text: str) -> str:
        return text

    def unreadable(value: open) -> str:
        return str(value)

    with pytest.raises(TypeError, match="waits is an async def"):
        run(waits, "a")
    with pytest.raises(TypeError, match="rows cannot be decoded as unreadable is annotated"):
        run(unreadable, "a")
