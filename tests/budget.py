"""The budget of the fast lane, in processor time, which depends less than seconds on other work on
the machine, and is longer by as much as the machine is slower at present; and the slow tests that take long.
"""

import resource
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

import pytest

# Seconds of two processors for five minutes, with collecting the tests.
SECONDS: Final = 600.0
# Processor seconds of `work` on a machine on which the lane has SECONDS.
REFERENCE: Final = 0.04
# A run of fewer tests is a part of the lane.
WHOLE: Final = 4000
_KEY: Final = "processor_seconds"
_REFERENCE_KEY: Final = "reference_seconds"
# The files whose slow tests take longest, together, the longest first.
_LONGEST = """
    test_campaign test_ray test_tutorials test_code_blocks test_differential_recorded
    test_openapi_conformance test_examples test_ray_cluster test_hugging_face test_cluster test_serve
    test_compiled test_console_views test_object_stores test_command test_sagemaker test_tabular
    test_console_actions test_migrate test_doctor test_console_lists test_fork_server test_finder
    test_console_many test_eight_bits test_builtin_handlers test_worker_start test_device test_replay
    test_console test_model_environments test_worker_faults test_ts_names test_on_demand test_int8
    test_gpus test_build test_queue_properties test_identity test_uvicorn_versions
    test_clients_that_do_not_read test_default_sets
"""
LONGEST: Final = tuple(_LONGEST.split())


def used() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def work() -> float:
    """Does the same as ever; returns the processor seconds that it takes here and now."""
    started, number = time.process_time(), 0
    for each in range(1_000_000):
        number += each
    return time.process_time() - started


class Budget:
    """Adds up what the processes of pytest-xdist use; fails a run of the whole lane that uses more."""

    def __init__(self, *, is_fast_lane: bool) -> None:
        self._is_fast_lane = is_fast_lane
        self.seconds = 0.0
        self.tests = 0
        self._references: list[float] = []

    def add(self, output: Mapping[str, Any]) -> None:
        self.seconds += output.get(_KEY, 0.0)
        self._references += output.get(_REFERENCE_KEY, ())

    @property
    def most(self) -> float:
        """Seconds that the lane may use at the speed that the processes have measured."""
        references = self._references
        return SECONDS * max(1.0, fmean(references) / REFERENCE) if references else SECONDS

    @property
    def fault(self) -> str:
        """What is wrong, empty if nothing is."""
        if not self._is_fast_lane or self.tests < WHOLE or self.seconds <= self.most:
            return ""
        return (
            f"The fast lane used {self.seconds:.0f} s of processor time, {self.most:.0f} s is the most "
            "on this machine now: make a test faster, or mark it `slow`"
        )

    # -- hooks of pytest

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests += report.when == "call"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.add(getattr(node, "workeroutput", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.fault and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.tests >= WHOLE:
            terminalreporter.write_line(f"{self.seconds:.0f} s of processor time of {self.most:.0f}")
        if self.fault:
            terminalreporter.write_line(self.fault, red=True)


def configure(config: pytest.Config) -> None:
    """Adds the budget to a run in several processes, and to each of them what it reports."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reporter(config))
    else:
        config.pluginmanager.register(Budget(is_fast_lane=config.option.markexpr == "not slow"), "budget")


class _Reporter:
    def __init__(self, config) -> None:
        self._config = config
        self._references = [work()]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._config.workeroutput[_KEY] = used()
        self._config.workeroutput[_REFERENCE_KEY] = [*self._references, work()]
