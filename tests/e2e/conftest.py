import contextlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e.browsing import Watched, chromium
from tests.e2e.serving import MODEL_CODE, Home, Server, archived, serving
from tests.ext.payloads.sinks import SinkServer, sink_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

StartServer = Callable[..., Server]
# Characters of each server's log that a failed test shows.
_LAST_LOG = 3000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its servers have logged last."""
    report = yield
    if report.failed:
        for name, server in getattr(item, "funcargs", {}).items():
            if isinstance(server, Server):
                report.sections.append((f"log of {name}", server.home.log()[-_LAST_LOG:]))
    return report


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with an archive of each handler in ``model_code``, and what else the tests load."""
    store = tmp_path_factory.mktemp("store")
    broken = tmp_path_factory.mktemp("broken") / "syntax.py"
    broken.write_text("def handle(data, context)\n    return data\n")
    for handler in (*sorted(MODEL_CODE.glob("*.py")), broken):
        archived(store, handler.stem, handler)
    archived(broken.parent, "echo", MODEL_CODE / "tell.py", "2.0").rename(store / "echo-v2.mar")
    return store


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def start_server(tmp_path: Path, model_store: Path) -> Iterator[StartServer]:
    """Starts servers that are stopped after the test; see :class:`Server` for the arguments."""
    with contextlib.ExitStack() as stack:

        def start(*flags: object, environment: dict[str, str] | None = None, **settings: object) -> Server:
            home = Home(tmp_path / f"server{len(list(tmp_path.iterdir()))}", environment)
            return stack.enter_context(serving(Server(home, model_store, flags, settings)))

        yield start


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory, model_store: Path) -> Iterator[Server]:
    """One server with its defaults for a module, whose tests register what they need under own names."""
    with serving(Server(Home(tmp_path_factory.mktemp("shared")), model_store)) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    yield shared_server
    for model in shared_server.management.get("/models").json()["models"]:
        shared_server.unregister(model["modelName"])


@pytest.fixture
def pool():
    with ThreadPoolExecutor(32) as executor:
        yield executor


@pytest.fixture(scope="module")
def sink() -> Iterator[SinkServer]:
    with sink_server() as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as started:
        yield started


@pytest.fixture
def watched(browser: "Browser") -> Iterator[Watched]:
    """A new page; an error in it, or a request to another host, fails the test."""
    made = Watched(browser)
    try:
        yield made
        made.check()
    finally:
        made.close()


@pytest.fixture
def page(watched: Watched, server: Server) -> "Page":
    """The console of the module's server, live."""
    page = watched.open(server)
    page.wait_for_selector("#status[data-state=live]")
    return page
