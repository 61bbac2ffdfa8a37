"""What all tests share."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelserver.worker import elsewhere

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# Threads of torch that wait would keep a core from the tests and servers beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Files whose locks processes of pytest-xdist share: of tests that run now, and of the one that is next.
_NOW, _NEXT = Path(__file__), Path(__file__).with_name("test_house.py")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests marked ``alone`` measure: while one runs, the other processes of this run rest.

    It stands around the timeout of a test, so that waiting for others does not count.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Waits until a test may run, beside others or alone; who comes later does not go before."""
    with _NOW.open() as running, _NEXT.open() as following:
        fcntl.flock(following, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(following, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What tests print may be no text that pytest-xdist can pass on: lone surrogates become marks."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "replace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def interruptible_children() -> None:
    """What a shell runs in the background ignores SIGINT, and so would the commands that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
        assert spec is not None
        assert spec.submodule_search_locations is not None
        (packages / name).symlink_to(spec.submodule_search_locations[0])
    return folder / "bin" / "python"
