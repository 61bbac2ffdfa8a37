"""What a worker needs of its process, wherever it runs, of what starts it, and of its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelserver.batching.request import Batch
    from modelserver.errors import ModelServerError
    from modelserver.pools.spec import WorkerSpec
    from modelserver.wire.messages import Parts, Result, ToServer, ToWorker

Worker_contra = TypeVar("Worker_contra", contravariant=True)


@dataclass(slots=True)
class Node:
    """The other machine that a process runs on, as it last described itself.

    ``name`` is the cluster's name for it. ``resident`` are the bytes of memory of the worker's processes,
    ``available`` those that the machine could still give, ``gpu`` the worker's GPUs in words.
    """

    name: str
    host: str = ""
    resident: int = 0
    available: int = 0
    gpu: str = ""


class Process(Protocol):
    """The running process of a worker, or several with the same interface."""

    @property
    def pid(self) -> int:
        """Its number on its machine."""

    @property
    def pids(self) -> list[int]:
        """Its processes on this machine; none if it runs on another one."""

    @property
    def node(self) -> Node | None:
        """Where it runs; None: on this machine."""

    @property
    def round_trip(self) -> float:
        """Seconds that a message takes there and back, as measured; 0.0 on this machine."""

    @property
    def recalls(self) -> bool:
        """Whether batches can be taken back from it."""

    @property
    def begun(self) -> int | None:
        """How many batches it had begun when it ended; None before its end, or if unknown."""

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        """Sends one message; dropped if the connection is lost."""

    def allow(self, limit: int) -> None:
        """Changes the limit for its frames, in bytes."""

    def recall(self, sequence: int) -> int | None:
        """Takes back the batches below ``sequence`` that it has not begun; returns how many it has begun.

        None: it has been asked, and will answer with a :class:`~modelserver.wire.messages.Recalled`.
        Raises OSError.
        """

    def kill(self) -> None:
        """Ends it without asking."""

    async def wait(self) -> str:
        """Waits for its end, and returns how it ended."""

    def last_output(self, lines: int = 20) -> str:
        """The last lines of its output."""


class Launcher(Protocol):
    """Starts the processes of workers."""

    async def __call__(
        self,
        spec: WorkerSpec,
        label: str,
        on_message: Callable[[ToServer, memoryview], None],
        on_lost: Callable[[str | None], None],
    ) -> Process:
        """Starts a process and sends it its model.

        ``on_message`` gets each message with the bytes after it (only valid during the call); ``on_lost`` is
        called once when the connection is lost, with the reason or None for an orderly end.

        Raises OSError if it cannot be started.
        """


class WorkerOwner(Protocol[Worker_contra]):
    """The receiver of a worker's events, called on the event loop."""

    def worker_ready(self, worker: Worker_contra, seconds: float) -> None: ...

    def worker_answered(
        self, worker: Worker_contra, batch: Batch, result: Result, tail: memoryview
    ) -> None: ...

    def worker_streamed(
        self, worker: Worker_contra, batch: Batch, message: Parts, tail: memoryview
    ) -> None: ...

    def worker_returned(self, worker: Worker_contra, batch: Batch) -> None:
        """The batch was taken back: it has not begun, and will not there."""
        ...

    def worker_lost(
        self, worker: Worker_contra, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        """A process ended. ``running`` had begun and is lost; ``unbegun`` batches may go elsewhere."""
        ...
