"""The budget of the fast lane, in processor time, which depends less than seconds on other work on
the machine; and the slow tests that take long.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds of two processors for five minutes, with collecting the tests.
SECONDS: Final = 600.0
# A run of fewer tests is a part of the lane.
WHOLE: Final = 4000
_KEY: Final = "processor_seconds"
# The files whose slow tests take longest, together, the longest first.
LONGEST: Final = (
    *("test_campaign", "test_ray", "test_code_blocks", "test_serve", "test_differential_recorded"),
    *("test_cluster", "test_compiled", "test_examples", "test_openapi_conformance"),
    *("test_object_stores", "test_console", "test_doctor"),
    *("test_model_environments", "test_identity", "test_migrate", "test_uvicorn_versions", "test_replay"),
    *("test_clients_that_do_not_read", "test_default_sets", "test_sagemaker", "test_int8"),
)


def used() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


class Budget:
    """Adds up what the processes of pytest-xdist use; fails a run of the whole lane that uses more."""

    def __init__(self, *, is_fast_lane: bool) -> None:
        self._is_fast_lane = is_fast_lane
        self.seconds = 0.0
        self.tests = 0

    def add(self, output: Mapping[str, Any]) -> None:
        """A process has ended with this output."""
        self.seconds += output.get(_KEY, 0.0)

    @property
    def fault(self) -> str:
        """What is wrong, empty if nothing is."""
        if not self._is_fast_lane or self.tests < WHOLE or self.seconds <= SECONDS:
            return ""
        return (
            f"The fast lane used {self.seconds:.0f} s of processor time, {SECONDS:.0f} s is the most: make a "
            "test faster, or mark it `slow`"
        )

    # -- hooks of pytest

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests += report.when == "call"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.add(getattr(node, "workeroutput", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.fault and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.tests >= WHOLE:
            terminalreporter.write_line(f"{self.seconds:.0f} s of processor time")
        if self.fault:
            terminalreporter.write_line(self.fault, red=True)


def configure(config: pytest.Config) -> None:
    """Adds the budget to a run in several processes, and to each of them what it reports."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reporter(config))
    else:
        config.pluginmanager.register(Budget(is_fast_lane=config.option.markexpr == "not slow"), "budget")


class _Reporter:
    """Reports what a process has used."""

    def __init__(self, config: Any) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._config.workeroutput[_KEY] = used()
