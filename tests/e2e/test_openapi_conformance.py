"""schemathesis sends the requests that the listeners' OpenAPI documents describe (F70)."""

import json
import os
import subprocess
import sys

import pytest
from tests.e2e.serving import Home, Server, archived, serving

from modelserver.surface.api.application import UNLISTED

pytestmark = pytest.mark.slow  # sends thousands of requests

# Never a 5xx, and of what the document says: methods, status, content type, headers and schema. Left out is
# what clients of TorchServe need otherwise: lenient numbers ("limit=abc" is served), and a request that fits
# the schema and is refused with its reason.
OF_ANSWERS = ("allow_header", "status_code", "content_type", "response_headers", "response_schema")
CHECKS = ("not_a_server_error", "unsupported_method", *(f"{name}_conformance" for name in OF_ANSWERS))
# All values that a schema names, and many examples, take minutes.
LONG = bool(os.environ.get("MODELSERVER_LONG_TESTS"))
EXAMPLES = 20 if LONG else 8
PHASES = "examples,coverage,fuzzing" if LONG else "examples,fuzzing"
# The name that the documents' examples ask for.
MODEL = "resnet-152"
SETTINGS = {"load_models": f"{MODEL}.mar", "default_workers_per_model": 1}
# Half of the answers are JSON, the others have no content type.
HANDLER = """
def handle(data, context):
    texts = [repr(row) for row in data or []]
    return [{"size": len(text)} if len(text) % 2 else text.encode() for text in texts]
"""
WORKERS = ("initial_workers", "min_workers", "max_workers", "min_worker", "max_worker")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    store = folder / "store"
    archived(store, MODEL, HANDLER)
    with serving(Server(Home(folder / "home"), store, settings=SETTINGS)) as started:
        started.wait_ready(MODEL)
        yield started


def closed(document):
    """The document, with answers that have the named fields and no others."""
    for name, schema in document["components"]["schemas"].items():
        if "Request" not in name:
            close(schema)
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict):
                close(operation.get("responses"))
    return document


def close(schema):
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for child in schema.values():
            close(child)


def few_workers(document):
    """The document, with so few workers that the machine that runs the tests can start them."""
    if isinstance(document, list):
        return [few_workers(item) for item in document]
    if not isinstance(document, dict):
        return document
    bounded = {"type": "integer", "minimum": 0, "maximum": 1}
    if document.get("name") in WORKERS and document.get("in") == "query":
        return {**document, "schema": bounded}
    return {key: bounded if key in WORKERS else few_workers(value) for key, value in document.items()}


def conforms(server, listener, folder, *options):
    """Runs schemathesis on a listener's document; fails with what it says."""
    client = getattr(server, listener)
    path = folder / "openapi.json"
    path.write_text(json.dumps(few_workers(closed(client.get("/openapi.json").json()))))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", str(client.base_url)]
    command += ["--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--seed", "1"]
    # Other methods of the route are described, but not tested again.
    command += ["--exclude-by", f"/{UNLISTED} == true"]
    command += ["--generation-database", "none", "--request-timeout", "30", "--no-color", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    assert "No test cases" not in done.stdout
    assert client.get("/openapi.json").status_code == 200


def test_inference_does_what_its_document_says(server, tmp_path):
    """Requests made from it, valid or not, never get a 5xx, nor an answer that it does not tell of (F70)."""
    conforms(server, "inference", tmp_path, "--phases", PHASES)
    assert "Traceback" not in server.home.log()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            ("--phases", "examples,coverage"),
            marks=pytest.mark.skipif(not LONG, reason="takes a minute: only with MODELSERVER_LONG_TESTS=1"),
        ),
        ("--phases", "examples,fuzzing", "--mode", "positive"),
    ],
    ids=["each value", "by chance"],
)
def test_management_does_what_its_document_says(start_server, server, tmp_path, options):
    """The same of the management listener, where models come, go and are scaled meanwhile (F70)."""
    own = start_server(model_store=server.settings["model_store"], load_models=f"{MODEL}.mar")
    conforms(own, "management", tmp_path, *options)

    assert "Traceback" not in own.home.log()


def test_metrics_do_what_their_document_says(server, tmp_path):
    """Responses of the metrics listener conform to its document, too (F70)."""
    conforms(server, "metrics", tmp_path, "--phases", "coverage,fuzzing" if LONG else "fuzzing")
