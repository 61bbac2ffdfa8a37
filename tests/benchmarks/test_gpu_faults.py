"""What is concluded from a server's answers to faults; tests/benchmarks/test_gpu_first.py makes them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import gpu_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = (200, "2")


class Answering:
    """A server whose worker and memory are ``before`` and then ``after``, and that answers rows as told."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        answers: dict[str, tuple[int, str]],
        after: tuple[int, float | None] = (2, 900),
    ) -> None:
        self.facts = [{"pid": pid, "MiB on the GPU": used} for pid, used in ((1, 900), after)]
        self.answers = answers
        monkeypatch.setattr(gpu_faults, "_table", self.table)
        monkeypatch.setattr(gpu_faults, "_ask", lambda _, row: self.answers.get(row, GOOD))
        monkeypatch.setattr(gpu_faults, "_facts", lambda *_: self.facts.pop(0))
        monkeypatch.setattr(gpu_faults.gpus, "memory", lambda _: None)

    @contextlib.contextmanager
    def table(self, _options: object) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("status", "after", "passed"),
    [
        (500, (2, 900), True),
        (500, (2, None), True),
        (507, (2, 900), False),
        (500, (1, 900), False),
        (500, (2, 2000), False),
    ],
    ids=["replaced", "memory unknown", "told as out of memory", "the same worker", "memory is lost"],
)
def test_a_poisoned_worker_is_replaced(
    status: int, after: tuple[int, float | None], passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it had on the GPU given back, and without being told as out of memory."""
    Answering(monkeypatch, {"9 0": (status, "?")}, after)

    assert gpu_faults.poisoned(options())[0] is passed


@pytest.mark.parametrize(
    ("alone", "pid", "batch", "passed"),
    [(507, 1, 200, True), (200, 1, 200, False), (507, 2, 200, False), (507, 1, 507, False)],
)
def test_only_what_cannot_fit_is_refused(
    alone: int, pid: int, batch: int, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is answered in parts, a row that is too large alone 507, by one and the same worker."""
    Answering(monkeypatch, {"1 1": (batch, "1"), "1 16": (alone, "?")}, (pid, 900))

    assert gpu_faults.too_large(options())[0] is passed


def options() -> Any:
    """Those of a real run."""
    return None
