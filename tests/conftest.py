import fcntl
import gc
import importlib.util
import logging
import os
import signal
import venv
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import settings
from tests import budget

from modelserver.engine.worker import elsewhere

# Threads of torch that wait would keep a core from the tests and servers beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Inductor believes what the processor says; to try its instructions takes more than compiling a network.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# The duration of an example depends on other work on the machine, so there is no deadline.
settings.register_profile("modelserver", deadline=None)
settings.load_profile("modelserver")

_ROOT = Path(__file__).parent

# Files whose locks processes of pytest-xdist share: of tests that run now, and of the one that is next.
_NOW, _NEXT = Path(__file__), Path(__file__).with_name("test_house.py")


def pytest_configure(config: pytest.Config) -> None:
    """See :mod:`tests.budget`."""
    budget.configure(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A process of pytest-xdist reports of a setup or teardown only what is worth it: two thirds of all
    messages say that one has passed. They are needed where durations are to be printed.
    """
    config = session.config
    if not hasattr(config, "workerinput") or config.option.durations is not None:
        return
    (reporter,) = (each for each in config.pluginmanager.get_plugins() if hasattr(each, "sendevent"))
    send = reporter.sendevent

    def send_results(name: str, **values) -> None:
        report = values.get("data", {}) if name == "testreport" else {}
        if (report.get("when"), report.get("outcome")) not in (("setup", "passed"), ("teardown", "passed")):
            send(name, **values)

    reporter.sendevent = send_results


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The objects of imported libraries stay. There are millions: to look for garbage among them would take
    more than half of the time of tests that collect it, as handlers do when they have loaded a model.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The slow lane does not import files without a slow test: for each process that would be ten seconds."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if config.option.markexpr == "slow" and is_test and b"mark.slow" not in collection_path.read_bytes():
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each process of pytest-xdist begins with other folders: what one compiles is there for the others."""
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and collector.path == _ROOT:
        share = len(report.result) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = share * int(worker.removeprefix("gw"))
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in each process. Files with slow tests come first, so that at the end no process waits
    for another's long test; then those with tests that others wait for, which would wait for long ones; of
    these, files with nothing else are last, since others have nothing to do meanwhile.
    """
    alone = {item.path for item in items if item.get_closest_marker("alone")}
    slow = {item.path for item in items if item.get_closest_marker("slow")} - alone
    others = {item.path for item in items if not item.get_closest_marker("alone")}

    def rank(item: pytest.Item) -> tuple[bool, int, bool, bool, Path]:
        is_slow, name, path = item.path in slow, item.path.stem, item.path
        place = budget.LONGEST.index(name) if is_slow and name in budget.LONGEST else len(budget.LONGEST)
        return not is_slow, place, path not in alone, path not in others, path

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Tests marked ``alone`` measure: while some run, the other processes of this run rest.

    It stands around the timeout of a test, so that waiting for others does not count.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    if _turn.file is None:
        _turn.take(alone)
    try:
        return (yield)
    finally:
        if not alone or nextitem is None or nextitem.get_closest_marker("alone") is None:
            _turn.give()


class Turn:
    """When the tests of this process may run, beside others' or alone; who comes later does not go before."""

    def __init__(self) -> None:
        self.file: IO[str] | None = None

    def take(self, alone: bool) -> None:
        self.file = _NOW.open()
        with _NEXT.open() as following:
            fcntl.flock(following, fcntl.LOCK_EX)
            fcntl.flock(self.file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

    def give(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


_turn = Turn()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What tests print may be no text that pytest-xdist can pass on: lone surrogates become marks."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "replace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="module")
def uncollected() -> Iterator[None]:
    """A file that makes millions of objects: to look for garbage among them takes longer than all else."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def interruptible_children() -> None:
    """What a shell runs in the background ignores SIGINT, and so would the commands that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def restored_log() -> Iterator[None]:
    """The server's logger is as it was before the test: others read what it logs."""
    logger = logging.getLogger("modelserver")
    before = logger.level, logger.propagate, logger.disabled
    yield
    level, logger.propagate, logger.disabled = before
    logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is written to the cache of the user who runs the tests; it is one for all, as it would be."""
    before = os.environ.get("MODELSERVER_CACHE")
    os.environ["MODELSERVER_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["MODELSERVER_CACHE"]
    else:
        os.environ["MODELSERVER_CACHE"] = before


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with nothing but what the worker's side imports."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in elsewhere.NEEDED:
        spec = importlib.util.find_spec(name)
        (packages / name).symlink_to(spec.submodule_search_locations[0])
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def old(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that says that it is 3.8."""
    folder = tmp_path_factory.mktemp("old")
    python = folder / "python"
    (folder / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 8, 20, 'final', 0)\n")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {bare} "$@"\n')
    python.chmod(0o700)
    return python
