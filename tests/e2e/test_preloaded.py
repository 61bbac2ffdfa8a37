import re

import pytest
from tests.e2e import serving
from tests.e2e.preloaded import Preloaded


@pytest.fixture
def printing(monkeypatch):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    preloaded = Preloaded(serving.ROOT)
    monkeypatch.setattr(serving, "preloaded", lambda: preloaded)
    yield
    preloaded.end()


@pytest.mark.slow  # a server that prints all imports
@pytest.mark.usefixtures("printing")
def test_servers_have_imported_all(start_server):
    """Hundreds of servers are started: each would need half a second of a processor for what is missing."""
    ports = {f"grpc_{side}_port": serving.free_port() for side in ("inference", "management")}
    server = start_server(enable_grpc_api="true", **ports)
    assert server.inference.get("/ping").status_code == 200

    imported = re.findall(r"^import time:.*\| +(\S+)$", server.home.output(), re.MULTILINE)
    assert imported
    assert {name.split(".")[0] for name in imported}.isdisjoint({"modelserver", "fastapi", "pydantic"})
