"""What a campaign shows: figures for its table, and what did not hold."""

import platform
import sys
from dataclasses import dataclass, field
from importlib.metadata import version

import psutil

import modelserver

# A statement that never holds would fill the screen.
_MOST_LINES = 40


@dataclass
class Report:
    """Prints at the end. ``failures`` and ``skipped`` are sentences. ``short``: time for one of a kind."""

    title: str
    short: bool = False
    figures: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def figure(self, name: str, value: object) -> None:
        self.figures.append((name, f"{value:,}" if isinstance(value, int) else str(value)))

    def hold(self, holds: object, otherwise: str) -> bool:
        """Notes a statement that does not hold; returns whether it does."""
        if not holds:
            self.failures.append(otherwise)
        return bool(holds)

    def skip(self, what: str, reason: str) -> None:
        """Something that cannot be tried here."""
        self.skipped.append(f"{what}: {reason}")

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.figures), default=0)
        lines = [f"== {self.title}", machine()]
        lines += [f"  {name:<{width}}  {value}" for name, value in self.figures]
        lines += [f"  not tried: {line}" for line in self.skipped]
        lines += [f"  DID NOT HOLD: {line}" for line in self.failures[:_MOST_LINES]]
        if len(self.failures) > _MOST_LINES:
            lines.append(f"  ... and {len(self.failures) - _MOST_LINES} more")
        return "\n".join([*lines, "" if self.failures else "  all held"])


def machine() -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    memory = psutil.virtual_memory().total >> 30
    return (
        f"  {psutil.cpu_count()} cores, {memory} GiB, {platform.system()} {platform.release()}, "
        f"Python {python}, modelserver {modelserver.__version__}, uvicorn {version('uvicorn')}, "
        f"httptools {version('httptools')}, grpcio {version('grpcio')}"
    )
