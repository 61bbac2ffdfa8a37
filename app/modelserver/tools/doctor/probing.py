"""What the worker of ``modelserver check`` tells about its handler, beside its answers.

Each report is one message on a socket pair of its own, whose descriptor the environment names. The checker
reads it after the answer that the report was sent before.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

PROBE = "MODELSERVER_PROBE"
"""The environment variable with the descriptor that reports are sent to."""

# Calls after which garbage is collected and memory is looked at.
LOOKS_EVERY = 25


class SourceLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of the model's own code; ``file`` is relative to its folder."""

    file: str
    line: int
    function: str = ""


class Imported(msgspec.Struct, frozen=True, array_like=True):
    """A package or module that was imported while the handler loaded.

    ``own`` are the seconds of its own modules, ``total`` also those of others that it imported, if the
    model's own code imported it, at ``place``.
    """

    name: str
    own: float
    total: float = 0.0
    place: SourceLine | None = None


class Training(msgspec.Struct, frozen=True, array_like=True):
    """A network in training mode: its name, its class, and the layers whose outputs depend on the mode."""

    name: str
    kind: str
    layers: list[str]


class Reported(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """The handler was loaded: seconds of its import and of its initialisation.

    ``base`` is the module of the built-in handler that it is or extends, ``methods`` where its own ones are.
    """

    imported: list[Imported]
    import_seconds: float
    initialize_seconds: float
    base: str = ""
    methods: dict[str, SourceLine] = {}
    training: list[Training] = []


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """A file that a call read, and where the model's code did that, if it is known."""

    path: str
    place: SourceLine | None = None


class StartedTask(msgspec.Struct, frozen=True, array_like=True):
    """A thread or process that a call started, and where."""

    what: str
    place: SourceLine | None = None


class Called(msgspec.Struct, frozen=True, array_like=True, tag="called"):
    """One call of the handler with ``rows``; ``answers`` is how many it returned, -1 if that is no list.

    ``error`` is what it raised instead, at ``raised``. ``has_gradients``: it computed with gradients that it
    did not use, at ``gradients``. ``blocks``: Python's memory blocks in use after every so many calls,
    otherwise None. ``built``: where it built a network, or loaded the weights of one.
    """

    rows: int
    answers: int
    error: str = ""
    raised: SourceLine | None = None
    opened: list[Opened] = []
    started: list[StartedTask] = []
    gradients: SourceLine | None = None
    has_gradients: bool = False
    training: list[Training] = []
    blocks: int | None = None
    built: SourceLine | None = None

    @property
    def failed(self) -> bool:
        return bool(self.error)

    @property
    def is_whole(self) -> bool:
        """Whether it returned one answer per row."""
        return not self.failed and self.answers == self.rows


Report: TypeAlias = Reported | Called
