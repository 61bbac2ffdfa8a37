"""The handlers that docs/handlers.md shows, as they are printed."""

from __future__ import annotations

import pytest
from tests.e2e.chunks import examples_under
from tests.e2e.serving import wait_until

from modelserver.archiver import ArchiveConfig, build_archive


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    """A store that the tests add their archives to."""
    return tmp_path_factory.mktemp("guide")


def served(server, store, name, source):
    """Packs a handler's source and registers it."""
    path = store / f"{name}.py"
    path.write_text(source)
    build_archive(ArchiveConfig(name, str(path), "1.0", export_path=store))
    return server.registered(f"{name}.mar", batch_size=4, max_batch_delay=20)


def test_a_function(shared_server, model_store):
    """It answers the length of what it is sent."""
    server = served(shared_server, model_store, "length", examples_under("A function")[0])

    assert server.predict("length", b"abc").text == "3"


def test_rejecting(shared_server, model_store):
    """What "Errors" shows turns a request away; the others are answered."""
    (steps,) = examples_under("Errors")
    source = "class torch:\n    tensor = list\ndef parse(body):\n    return int(body)\nclass Base:\n"
    source += "".join(f"    {line}\n" for line in steps.splitlines())
    source += "    def handle(self, data, context):\n        self.context = context\n"
    source += "        rows = self.preprocess(data)\n        return rows + [0] * (len(data) - len(rows))\n"
    server = served(shared_server, model_store, "rejecting", source)

    assert server.predict("rejecting", b"7").text == "7"
    answer = server.predict("rejecting", b"seven")
    assert (answer.status_code, answer.json()["message"][:18]) == (400, "not a measurement:")


def test_measuring(shared_server, model_store):
    """What "Custom metrics" shows counts; so does a line of a TorchServe worker (reference 15.4)."""
    (lines,) = examples_under("Custom metrics")
    source = "def handle(data, context):\n    if data is None:\n        return None\n"
    source += "".join(f"    {line}\n" for line in lines.splitlines())
    source += "    print('[METRICS]Hits.Count:2|#Cache:memory|#type:COUNTER|#hostname:h,1700000000')\n"
    source += "    return ['measured'] * len(data)\n"
    server = served(shared_server, model_store, "measuring", source)
    for _ in range(2):
        assert server.predict("measuring").text == "measured"

    assert server.metric("Pictures", ModelName="measuring") == 2
    assert server.metric("Lookup", ModelName="measuring") == 1.5
    wait_until(lambda: server.metric("Hits", Cache="memory") == 4, "what was printed is counted")
    assert "Hits" not in server.home.log("model_log.log")


@pytest.mark.slow
def test_a_class(shared_server, model_store):
    """The doubling handler, asked as "Packing and trying" says (needs torch)."""
    server = served(shared_server, model_store, "doubler", examples_under("A class")[0])

    assert server.predict("doubler", {"numbers": [1, 2]}).json() == [2.0, 4.0]


@pytest.mark.slow
def test_describing_itself(shared_server, model_store):
    """What "Custom descriptions" shows is in the model's description."""
    (method,) = examples_under("Custom descriptions")
    source = (
        "from modelserver_handlers.base import BaseHandler\nclass Described(BaseHandler):\n    mapping = {}\n"
    )
    source += "    def initialize(self, context):\n        self.context = context\n"
    source += "".join(f"    {line}\n" for line in method.splitlines())
    server = served(shared_server, model_store, "described", source)
    answer = server.management.get("/models/described", params={"customized": "true"})

    assert answer.json()[0]["customizedMetadata"] == {"classes": 0, "trained": "2024-05-01"}


def test_annotated_rows(shared_server, model_store):
    """The handler with annotations, packed like any other."""
    server = served(shared_server, model_store, "mean", examples_under("Annotated rows")[0])

    def ask(row: object) -> object:
        return server.inference.post("/predictions/mean", json=row)

    assert ask([1, 2, 4]).json() == 2.333
    assert ask("x").status_code == 400
