"""The work of a peer's program, which its environment holds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

VARIABLE = "BENCHMARK_TASK"


class Computed(Protocol):
    """A model: each request is parsed by itself, a batch of them answered together."""

    def parse(self, body: Any) -> Any:
        """The body of one request, as the model wants it."""

    def answers(self, items: list[Any]) -> list[Any]:
        """One answer for each parsed request, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to serve and how; ``delay`` in seconds, ``queue`` in requests."""

    kind: str
    batch: int
    delay: float
    port: int
    queue: int
    threads: int
    archive: str
    arch: str

    def model(self) -> Computed:
        """The model, loaded."""
        if self.kind == "noop":
            return Nothing()
        if self.kind == "mlp":
            from benchmarks.peers.mlp import Mlp  # noqa: PLC0415 - a server that does nothing needs no torch

            return Mlp.loaded()
        from benchmarks.networks import Network  # noqa: PLC0415 - torchvision is for pictures only

        return Network(Path(self.archive), self.arch)


class Nothing:
    """Answers without looking."""

    def parse(self, body: Any) -> Any:
        """The body itself."""
        return body

    def answers(self, items: list[Any]) -> list[Any]:
        """A small object each."""
        return [{"ok": 1} for _ in items]


def environment(task: Task) -> dict[str, str]:
    """The variable that tells a program its task."""
    return {VARIABLE: json.dumps(asdict(task))}


def task_of_process() -> Task:
    """The task of this process. Raises KeyError where it has none."""
    return Task(**json.loads(os.environ[VARIABLE]))
