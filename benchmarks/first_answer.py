"""How long ``modelserver serve handler.py`` takes from the command to the first answer.

One handler does without torch, and one multiplies with it; beside them, a Python that imports torch and ends.
They take turns, and the figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.options import DRY_RUN, OUT, run, tells_failures
from benchmarks.report import Mark, heading, machine, number, table, write_json
from benchmarks.servers import HOST, BenchmarkError
from modelserver.tools.tune.own_server import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITHOUT, WITH, IMPORT = "serve, without torch", "serve, with torch", "import torch"
_BODY = b"[1.0, 2.0]"
_PAUSE = 0.002
_PATIENCE = 120.0
_HANDLERS = {
    WITHOUT: "import modelserver\n\n\nclass Doubler(modelserver.Handler):\n"
    "    def predict(self, rows):\n        return [2 * row for row in rows]\n",
    WITH: "import torch\n\nimport modelserver\n\n\nclass Doubler(modelserver.Handler):\n"
    "    def predict(self, rows: torch.Tensor) -> torch.Tensor:\n        return 2 * rows\n",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds from the start of a process to its first answer, or its end; one per repetition."""

    subject: str
    seconds: list[float]

    @property
    def median(self) -> float:
        """The median of the repetitions."""
        return statistics.median(self.seconds)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser("first_answer", description=__doc__)
    add = parser.add_argument
    add("--reps", type=int, default=7, help="repetitions, interleaved; figures are medians (default: 7)")
    add("--without-torch", action="store_true", help="leave out what needs torch")
    add("--out", type=Path, help=OUT)
    add("--dry-run", action="store_true", help=DRY_RUN)
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if something did not answer."""
    options = parse(arguments)
    facts = machine()
    print(heading("From the command to the first answer", facts))
    subjects = (WITHOUT,) if options.without_torch else (WITHOUT, WITH, IMPORT)
    print(f"{options.reps} repetitions, interleaved: {', '.join(subjects)}\n")
    if options.dry_run:
        return 0
    with tempfile.TemporaryDirectory(prefix="first-answer-") as folder:
        taken = measure(Path(folder), subjects, options.reps)
    found = marks(taken)
    rows = [[each.subject, *(number(n) for n in (each.median, min(each.seconds)))] for each in taken]
    print(table(["seconds", "median", "least"], rows), *("", *map(str, found)), sep="\n")
    write_json(options.out, {"machine": facts, "taken": taken, "marks": found})
    return 0


def measure(folder: Path, subjects: Sequence[str], reps: int) -> list[Taken]:
    """All subjects in turns; a first turn, which fills the caches of the system, does not count.

    Raises BenchmarkError.
    """
    taken = {subject: Taken(subject, []) for subject in subjects}
    for repetition in range(-1, reps):
        for subject in subjects:
            seconds = _work(subject, folder)()
            if repetition >= 0:
                taken[subject].seconds.append(seconds)
                print(f"{subject}, repetition {repetition + 1}: {number(seconds)} s", file=sys.stderr)
    return list(taken.values())


def marks(taken: Sequence[Taken]) -> list[Mark]:
    """A second without torch; with it a fifth more than importing it, of the same repetition."""
    seconds = {each.subject: each.seconds for each in taken}
    ratios = [a / b for a, b in zip(seconds.get(WITH, ()), seconds.get(IMPORT, ()), strict=True)]
    return [
        Mark("first answer without torch", statistics.median(seconds[WITHOUT]), "<=", 1.0, " s"),
        Mark(
            "first answer with torch, to its import",
            statistics.median(ratios) if ratios else None,
            *("<=", 1.2, "", "not run"),
        ),
    ]


def _work(subject: str, folder: Path) -> Callable[[], float]:
    if subject == IMPORT:
        return _import_torch
    script = folder / ("with_torch.py" if subject == WITH else "without_torch.py")
    script.write_text(_HANDLERS[subject], "utf-8")
    return lambda: first_answer(script)


def _import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def first_answer(script: Path) -> float:
    """Seconds until the served script answers. Raises BenchmarkError if it does not."""
    port = _adjacent_ports()
    command = [sys.executable, "-m", "modelserver", "serve", script.name, "--port", str(port)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=script.parent, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not _answers(port, script.stem):
                if process.poll() is not None or time.perf_counter() - began > _PATIENCE:
                    output.seek(0)
                    told = output.read().decode("utf-8", "replace")
                    raise BenchmarkError(f"{script.name} is not served:\n{told}")
                time.sleep(_PAUSE)
            return time.perf_counter() - began
        finally:
            process.terminate()
            process.wait()


def _answers(port: int, name: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=_PATIENCE)
    try:
        connection.request("POST", f"/predictions/{name}", _BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
    except OSError:
        return False
    finally:
        connection.close()
    return answer.status == 200


def _adjacent_ports() -> int:
    """The first of three free ports."""
    while True:
        (first,) = free_ports(1)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server((HOST, port)))
            return first


if __name__ == "__main__":
    run(main)
