"""Limits the bytes of answers that wait for their clients, over all connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from modelserver.errors import ServiceUnavailable
from modelserver.surface.http.intake import MUCH

if TYPE_CHECKING:
    from modelserver.models.settings.settings import Settings

_log = logging.getLogger("modelserver.api")

# The share of the limit above which new requests are refused, so that answers being computed have room; and
# down to which answers are dropped once the limit is reached.
_TIGHT = 7 / 8
# Seconds without progress after which an answer is dropped rather than a new request refused, and between two
# searches for such answers.
_PATIENCE, _PAUSE = 1.0, 0.5


class Holder(Protocol):
    """A connection or stream whose client has not taken all of its answers."""

    def waited(self) -> float:
        """Seconds since the client last made progress."""

    def cut(self) -> None:
        """Ends it; what the client has not taken is dropped."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """Shared by the connections of a process: at most ``limit`` bytes of answers wait for clients.

    Above it, the holders that have waited longest without progress are cut; a single one never is.
    ``held`` are the bytes, ``is_tight``: new requests need :meth:`has_room`. ``give_back`` is called when
    much memory becomes free.
    """

    limit: int
    give_back: Callable[[], None] = lambda: None
    held: int = 0
    is_tight: bool = False
    _holders: dict[Holder, int] = field(default_factory=dict)
    _next_search: float = 0.0

    @classmethod
    def of(
        cls, settings: Settings, give_back: Callable[[], None] = lambda: None, front_ends: int = 1
    ) -> Outgoing:
        """That of the server or of a front end. Several front ends, their links and the server have equal
        shares; there is room for at least one prediction.
        """
        shares = 2 * front_ends + 1 if front_ends > 1 else 1
        return cls(max(settings.max_outgoing_bytes // shares, settings.max_response_size), give_back)

    def count(self, holder: Holder, size: int) -> None:
        """The holder has ``size`` bytes now; 0: it is forgotten."""
        before = self._holders.pop(holder, 0)
        if size:
            self._holders[holder] = size
        self.add(size - before)

    def add(self, size: int) -> None:
        """Counts bytes of no holder; a negative size: they are no longer held."""
        self.held += size
        self.is_tight = self.held > _TIGHT * self.limit
        if size > 0 and self.held > self.limit:
            self._cut(0.0)
        elif size <= -MUCH:
            self.give_back()

    def has_room(self) -> bool:
        """Whether a new request may be served; answers that wait for long make room for it."""
        now = monotonic()
        if self.is_tight and now >= self._next_search:
            self._next_search = now + _PAUSE
            self._cut(_PATIENCE)
        return not self.is_tight

    def refusal(self) -> ServiceUnavailable:
        """The error for a request that there is no room for."""
        return ServiceUnavailable(
            f"Nearly max_outgoing_bytes={self.limit} bytes of answers wait for their clients; try later."
        )

    def _cut(self, patience: float) -> None:
        """Cuts those that have waited longest, and at least ``patience`` seconds, until there is room."""
        waiting = [(holder.waited(), holder) for holder in list(self._holders)]
        waiting.sort(key=lambda each: each[0])
        before, number = self.held, 0
        while self.is_tight and len(self._holders) > 1 and waiting and waiting[-1][0] >= patience:
            _, holder = waiting.pop()
            if holder in self._holders:
                number += 1
                holder.cut()
                self.count(holder, 0)
        if number:
            _log.warning(
                "More than max_outgoing_bytes=%d allows wait for clients that do not take their answers: "
                "%d bytes of the %d answers that had waited longest were dropped.",
                self.limit,
                before - self.held,
                number,
            )
