"""The clients of KServe's own SDK, as they are installed from PyPI (kserve reference 7.3 and 7.4)."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.e2e.grpc_client import grpc_server
from tests.e2e.serving import run_to_end, serving

# A Python that has the package ``kserve``: this one, or the one of an environment that the variable names.
VARIABLE = "KSERVE_PYTHON"
PYTHON = sys.executable if find_spec("kserve") else os.environ.get(VARIABLE)
CALLS = Path(__file__).with_name("kserve_calls.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None, reason=f"needs the package kserve, or a Python that has it in {VARIABLE}"
    ),
]

# Values that the SDK's clients send and receive in all forms except FP16 in JSON, which they do not send.
VALUES = {
    "FP32": [1.0, 2.0, 3.0, 4.0],
    "INT64": [1 << 53, -(1 << 62)],
    "BOOL": [True, False],
    "BYTES": ["a", "ü"],
    "FP16": [0.5, -2.0],
}
SENT = [*(datatype for datatype in VALUES if datatype != "FP16" for _ in range(2)), "FP16"]


@pytest.fixture(scope="module")
def document(tmp_path_factory, model_store):
    """Of the clients: ``mirror`` returns its input, ``rows`` batches, ``pair`` waits, ``idle`` rests."""
    with serving(grpc_server(tmp_path_factory.mktemp("sdk"), model_store)) as server:
        server.registered("mirror.mar")
        server.registered("rows.mar", max_batch_size=8, max_latency=20)
        server.registered("mirror.mar", model_name="pair", batch_size=3, max_batch_delay=5000)
        server.registered("rows.mar", model_name="idle", initial_workers=0)
        port = server.settings["grpc_inference_port"]
        command = [PYTHON, CALLS, f"http://127.0.0.1:{server.port}", f"127.0.0.1:{port}"]
        done = run_to_end(command, server.home.path, os.environ, 90)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


def test_sdk_speaks_v1(document):
    reply = document["v1"]

    assert (reply["live"], reply["ready"], reply["unready"]) == (True, True, False)
    assert reply["answer"] == {"message": "", "batchId": reply["batch"], "predictions": [2, "two"]}
    assert reply["explained"]["explanations"] == [2, "two"]
    assert reply["unknown"].startswith("404 Model with name nobody does not exist. There are: ")
    assert "'404 Not Found'" in reply["unknown"]
    assert reply["wrong"].startswith("400 no instances in the request")


def answers():
    common = {"id": "7", "model": "mirror", "name": "output_0"}
    return [{**common, "datatype": datatype, "values": VALUES[datatype]} for datatype in SENT]


def test_sdk_speaks_v2(document):
    reply = document["v2"]

    assert (reply["live"], reply["ready"], reply["models"]) == (True, True, [True, False, False])
    assert by_datatype(reply["answers"]) == by_datatype(answers())
    assert reply["empty"]["values"] == []
    assert reply["unknown"].startswith("404 Model with name nobody does not exist.")
    assert reply["wrong"].startswith("400 input 'x': its shape needs 36 bytes, its data has 16")


def test_sdk_speaks_v2_over_grpc(document):
    """Health, raw and typed tensors; requests of different sizes share a batch; errors have their codes."""
    reply = document["grpc"]

    assert (reply["live"], reply["ready"], reply["models"]) == (True, True, [True, False])
    assert by_datatype(reply["answers"]) == by_datatype(answers())
    assert len(set(reply["batches"])) == 1
    assert all(reply["batches"])
    assert reply["unknown"].startswith("NOT_FOUND Model with name nobody does not exist.")
    assert reply["unready"].startswith("UNAVAILABLE ")
    assert reply["wrong"] == "INVALID_ARGUMENT input 'x': its shape needs 36 bytes, its data has 16"


def by_datatype(result):
    return sorted(result, key=lambda each: str(each["datatype"]))
