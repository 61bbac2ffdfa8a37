"""A batch in small parts that go through the phases one after another (reference 8.12, 13.5)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from modelserver_handlers.context import with_gaps
from modelserver_handlers.current_device import enter_thread

HANDLER_METHODS = ["preprocess", "inference", "postprocess"]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows of the batch from ``first`` on; ``done`` gets their answers."""

    number: int
    first: int
    rows: Sequence[Any]
    done: Future[list[Any]] = field(default_factory=Future)


class MicroBatching:
    """Replaces a handler's ``handle``: while one part is computed, the next one is prepared.

    Set it in a handler's ``__init__``: ``self.handle = MicroBatching(self)``. Its three methods then run in
    threads, each phase in ``parallelism`` ones (default: one), and must be thread-safe. In
    ``preprocess``, ``context.reject(idx)`` counts within the part; the context's other methods count in the
    whole batch, as in TorchServe (``get_micro_batch_idx`` says which part it is).

    Unlike in TorchServe, an exception in a phase is raised by the call, once no part is running (there
    the thread dies and the batch hangs); an empty batch is answered.

    Args:
        parent_handler: has the three methods.
        micro_batch_size: rows of a part, at least 1.
        parallelism: threads by phase.
    """

    def __init__(
        self, parent_handler: Any, micro_batch_size: int = 1, parallelism: Mapping[str, int] | None = None
    ) -> None:
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._parallelism: dict[str, int] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._of_thread = threading.local()
        self.parallelism = parallelism or {}

    @property
    def parallelism(self) -> dict[str, int]:
        """Threads by phase, if given; assigned values are merged into it.

        Raises ValueError for names not in HANDLER_METHODS, or fewer threads than 1.
        """
        return self._parallelism

    @parallelism.setter
    def parallelism(self, parallelism: Mapping[str, int]) -> None:
        for method, threads in parallelism.items():
            if method not in HANDLER_METHODS:
                raise ValueError(f"parallelism is for {', '.join(HANDLER_METHODS)}, not {method!r}")
            if not isinstance(threads, int) or threads < 1:
                raise ValueError(f"parallelism of {method} must be at least 1, got {threads!r}")
        self._parallelism = {**self._parallelism, **parallelism}
        for method in parallelism:
            pool = self._pools.pop(method, None)
            if pool is not None:
                pool.shutdown()

    @property
    def thread_groups(self) -> dict[str, list[int]]:
        """For each phase a list as long as it has threads; tests of handlers count them."""
        return {method: list(range(self._parallelism.get(method, 1))) for method in HANDLER_METHODS}

    def shutdown(self) -> None:
        """End the threads; a later batch starts new ones."""
        for pool in self._pools.values():
            pool.shutdown()
        self._pools.clear()

    def __call__(self, data: Any, context: Any) -> Any:
        """What ``BaseHandler.handle`` answers; a batch to explain, describe or profile is not split."""
        handler = self.handler
        handler.context = context
        in_one = handler._is_describe() or handler._is_explain() or "ENABLE_TORCH_PROFILER" in os.environ
        # The class's method, which this object hides.
        return type(handler).handle(handler, data, context) if in_one else self.handle(data)

    def handle(self, data: Sequence[Any]) -> list[Any]:
        """Answers of all parts in order, None for rejected rows.

        Raises what the first failing phase raised, and TypeError if ``postprocess`` does not return a list.
        """
        size = self.micro_batch_size
        if size < 1:
            raise ValueError(f"micro_batch_size must be at least 1, got {size}")
        parts = [
            _Part(number, first, data[first : first + size])
            for number, first in enumerate(range(0, len(data), size))
        ]
        for part in parts:
            self._pool(HANDLER_METHODS[0]).submit(self._run, 0, part, part.rows)
        # No part may still run beside the next batch, even after a failure.
        wait([part.done for part in parts])
        return [answer for part in parts for answer in part.done.result()]

    def get_micro_batch_idx(self) -> int:
        """Which part of the batch the calling thread works on, from 0."""
        idx: int = getattr(self._of_thread, "number", 0)
        return idx

    def _pool(self, method: str) -> ThreadPoolExecutor:
        if method not in self._pools:
            self._pools[method] = ThreadPoolExecutor(
                self._parallelism.get(method, 1), f"micro-{method}", enter_thread
            )
        return self._pools[method]

    def _run(self, phase: int, part: _Part, value: Any) -> None:
        """One phase of one part, and the start of the next."""
        self._of_thread.number = part.number
        try:
            value = self._phase(phase, part, value)
            last = phase + 1 == len(HANDLER_METHODS)
            if last or (phase == 0 and len(self._rejected(part)) >= len(part.rows)):
                part.done.set_result(self._answers(part, value if last else []))
            else:
                self._pool(HANDLER_METHODS[phase + 1]).submit(self._run, phase + 1, part, value)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
            part.done.set_exception(error)

    def _phase(self, phase: int, part: _Part, value: Any) -> Any:
        context = getattr(self.handler, "context", None)
        count_from = getattr(context, "_ms_count_from", nullcontext)
        with count_from(part.first):
            return getattr(self.handler, HANDLER_METHODS[phase])(value)

    def _rejected(self, part: _Part) -> set[int]:
        rejections = getattr(getattr(self.handler, "context", None), "_ms_rejections", None) or {}
        return {idx - part.first for idx in rejections if 0 <= idx - part.first < len(part.rows)}

    def _answers(self, part: _Part, answers: Any) -> list[Any]:
        if not isinstance(answers, list):
            raise TypeError(f"postprocess returned {type(answers).__name__} for a part, a list is needed")
        return list(with_gaps(answers, len(part.rows), self._rejected(part)))
