"""How long imports take, by package, and which of them the model's own code asks for."""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from modelserver.tools.doctor.probing import Imported, SourceLine
from modelserver.tools.doctor.worker.watch import place_of_caller

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds below which an import is not worth telling, unless the model's own code asks for it.
_SHORTEST = 0.001
_NAME = "_find_and_load"


class ImportClock:
    """Measures while it is entered. Modules that were imported before cost nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own: defaultdict[str, float] = defaultdict(float)
        self._requested: dict[str, tuple[float, SourceLine]] = {}
        # Seconds spent in imports within each of those that are running.
        self._within: list[float] = []
        # The function that all imports of new modules go through.
        self._machinery: Any = importlib._bootstrap
        self._original: Any = getattr(self._machinery, _NAME, None)

    def __enter__(self) -> Self:
        if self._original is not None:
            setattr(self._machinery, _NAME, self._find_and_load)
        return self

    def __exit__(self, *error: object) -> None:
        if self._original is not None:
            setattr(self._machinery, _NAME, self._original)

    def packages(self) -> list[Imported]:
        """The packages, the longest first."""
        names = {name for name, seconds in self._own.items() if seconds >= _SHORTEST} | self._requested.keys()
        imported = [
            Imported(name, self._own[name], *self._requested.get(name, (0.0, None))) for name in names
        ]
        return sorted(imported, key=lambda each: -each.own)

    def _find_and_load(self, name: str, import_: Any) -> Any:
        package = name.partition(".")[0]
        place = None if package in self._requested else place_of_caller(self._folder, directly=True)
        self._within.append(0.0)
        started = time.perf_counter()
        try:
            return self._original(name, import_)
        finally:
            seconds = time.perf_counter() - started
            self._own[package] += seconds - self._within.pop()
            if self._within:
                self._within[-1] += seconds
            if place is not None:
                self._requested[package] = seconds, place
