"""Shows progress: on a terminal a bar and the current measurement, otherwise plain lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Progressing:
    """Shows what a command does on a console."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console = console
        self._bar = bar
        self._stage = ""
        self._task = bar.add_task("", total=1.0)

    def stage(self, name: str) -> None:
        """Another stage begins."""
        self._stage = name
        self.line(f"{name}:")

    def trying(self, what: str, share: float) -> None:
        """This is measured now; ``share`` of the time has passed."""
        text = escape(f"{self._stage}: {what}")
        self._bar.update(self._task, completed=min(share, 1.0), description=text)

    def line(self, text: str) -> None:
        """There is a result."""
        indent = "" if text.endswith(":") else "  "
        self._console.print(f"{indent}{text}", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progressing() -> Iterator[Progressing]:
    """Shows the bar within the block, if standard output is a terminal."""
    console = Console()
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Progressing(console, bar)
