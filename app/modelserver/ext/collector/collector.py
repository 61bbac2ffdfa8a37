"""``system_metrics_cmd``: the operator's own collector of system metrics (reference 3.3, 15.4).

It runs every ``metric_time_interval`` seconds with the Python of ``python`` in the server's directory and
prints a metric per line: `<name>.<Unit>:<value>|#<Dimension>:<value>,..|#hostname:<host>,<more>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings

TIMEOUT = 60.0  # seconds
_LINE = re.compile(
    r"(?:INFO > )?(?:\[METRICS\])?\s*(?P<name>[^\s.:|]+)\.[^:|]*:(?P<value>[^|]+)"
    r"\|#(?P<dimensions>[^|]*)\|#(?:type:[^|]*\|#)?hostname:(?P<host>[^,|]*).*"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CollectedMetric:
    """One line of a collector."""

    name: str
    value: float
    dimensions: dict[str, str]


def command_of(settings: Settings) -> str | None:
    """The operator's collector.

    None too for TorchServe's own where it is not installed: the server reads the same metrics itself.
    """
    script = (settings.system_metrics_cmd or "").partition(" ")[0]
    is_missing = script.endswith("ts/metrics/metric_collector.py") and not Path(script).is_file()
    return None if is_missing else settings.system_metrics_cmd


class Collector:
    """Runs ``command``, a script and its arguments. Raises ConfigError if it cannot be parsed."""

    def __init__(self, command: str, python: str, *, timeout: float = TIMEOUT) -> None:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"Invalid configuration: system_metrics_cmd={command}: {error}") from None
        if not words:
            raise ConfigError("Invalid configuration: system_metrics_cmd: a script is needed")
        self._command = (python, *words)
        self._timeout = timeout

    async def read(self) -> list[CollectedMetric]:
        """The metrics it prints, also before a failure, which is logged."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            _log.warning("system_metrics_cmd cannot be started: %s", error)
            return []
        try:
            output, _ = await asyncio.wait_for(process.communicate(), self._timeout)
        except asyncio.TimeoutError:
            _log.warning("system_metrics_cmd was killed: it took longer than %g s", self._timeout)
            return []
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            _log.warning("system_metrics_cmd ended with status %d", process.returncode)
        return list(parse_readings(output.decode(errors="replace")))


def parse_readings(text: str) -> Iterator[CollectedMetric]:
    """The metrics with finite values; other lines are ignored."""
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        value = math.nan
        if match is not None:
            with contextlib.suppress(ValueError):
                value = float(match["value"])
        if match is None or not math.isfinite(value):
            continue
        pairs = (item.partition(":") for item in match["dimensions"].split(",") if item)
        yield CollectedMetric(match["name"], value, {key: text for key, _, text in pairs})
