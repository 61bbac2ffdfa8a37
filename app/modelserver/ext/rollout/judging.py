"""Compares answers in a helper process: reading large ones would block the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice, takewhile
from typing import NamedTuple

from modelserver.engine.offload.helpers import Helpers
from modelserver.errors import InternalError, ModelServerError
from modelserver.ext.rollout.compare import Pair, compare_all
from modelserver.ext.rollout.plan import Shadowing

_log = logging.getLogger("modelserver.rollout")

# Bytes and requests that may wait, comparisons in one call, and what a call may use.
MOST_BYTES = 1 << 24
MOST_WAITING = 1000
TOGETHER = 64
SECONDS = 10.0
_MEMORY = 1 << 30


class _Case(NamedTuple):
    pairs: list[Pair]
    how: Shadowing
    report: Callable[[str | None], None]
    nbytes: int


class Judge:
    """One helper for all shadows of a model; started by the first comparison that needs it."""

    def __init__(self) -> None:
        self._cases: list[_Case] = []
        self._nbytes = 0
        self._helpers: Helpers | None = None
        self._task: asyncio.Task[None] | None = None

    def compare(self, pairs: list[Pair], how: Shadowing, report: Callable[[str | None], None]) -> None:
        """Reports later why the first of the pairs differs: "" if none does, None if that is unknown."""
        nbytes = sum(len(pair.primary) + len(pair.shadow) for pair in pairs)
        if len(self._cases) >= MOST_WAITING or self._nbytes + nbytes > MOST_BYTES:
            report(None)
            return
        self._cases.append(_Case(pairs, how, report, nbytes))
        self._nbytes += nbytes
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._cases:
                await self._call(self._next())
        finally:
            self._task = None

    def _next(self) -> list[_Case]:
        """The cases that wait and are compared like the first of them."""
        how = self._cases[0].how
        cases = list(islice(takewhile(lambda case: case.how is how, self._cases), TOGETHER))
        del self._cases[: len(cases)]
        return cases

    async def _call(self, cases: list[_Case]) -> None:
        how = cases[0].how
        if self._helpers is None:
            self._helpers = Helpers("comparisons", 1, _MEMORY, InternalError)
        pairs = [pair for case in cases for pair in case.pairs]
        reasons: list[str | None]
        try:
            result = await self._helpers.call(SECONDS, compare_all, pairs, how.mode, how.slack)
            reasons = list(result)
        except ModelServerError as error:
            _log.warning("%d answers of a shadow could not be compared: %s", len(pairs), error)
            reasons = [None] * len(pairs)
        place = 0
        for case in cases:
            own = reasons[place : place + len(case.pairs)]
            place += len(case.pairs)
            self._nbytes -= case.nbytes
            case.report(None if None in own else next(filter(None, own), ""))

    def close(self) -> None:
        """Ends the helper."""
        if self._task is not None:
            self._task.cancel()
        if self._helpers is not None:
            self._helpers.close()
