import contextlib
import ctypes
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from tests.e2e.grpc_client import grpc_server
from tests.e2e.serving import archived, run_to_end, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="perf_analyzer is built for x86_64 only"),
]

# The last release that has the program, and what it is linked with.
WHEELS = ("tritonclient==2.44.0", "nvidia-cuda-runtime-cu12==12.9.79")
# Requests are counted, however long they take on a busy machine.
SHORT = """
    --measurement-mode count_windows --measurement-request-count 40 --max-trials 10
    --stability-percentage 100000
"""
SIGNATURE = """
signature:
  inputs: [{name: x, datatype: FP32, shape: [-1, 16]}]
  outputs: [{name: output_0, datatype: FP32, shape: [-1, 16]}]
minWorkers: 1
maxWorkers: 1
"""
CONFIGS = {
    "plain": f"{SIGNATURE}batchSize: 8\nmaxBatchDelay: 2\n",
    "steps": f"{SIGNATURE}batchSize: 4\nsequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"
    "maxNumSequence: 64\nmaxSequenceJobQueueSize: 1000\n",
}
VERSIONS = {"plain": "1.0", "steps": "1"}
HANDLER = """
import time


def handle(data, context):
    if data is None:
        return []
    time.sleep(0.004)
    return [next(iter(row.values())) for row in data]
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program and its environment, fetched from the package index and kept for the next run."""
    try:
        ctypes.CDLL("libb64.so.0d")
    except OSError:
        pytest.skip("libb64 is missing: apt-get install libb64-0d")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    saved = cache / "modelserver-tests" / "perf_analyzer-2.44"
    if not saved.is_dir():
        folder = tmp_path_factory.mktemp("wheels")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        pip += ["--only-binary=:all:", "--platform=manylinux1_x86_64", "--platform=manylinux2014_x86_64"]
        done = subprocess.run([*pip, *WHEELS], capture_output=True, text=True, check=False, timeout=100)
        if done.returncode:
            pytest.skip(f"perf_analyzer cannot be fetched: {done.stderr[-300:]}")
        saved.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=saved.parent))
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(fresh, [name for name in opened.namelist() if _NEEDED.search(name)])
        with contextlib.suppress(OSError):  # another run was quicker
            fresh.rename(saved)
    (path,) = saved.rglob("perf_analyzer")
    path.chmod(0o755)
    (runtime,) = saved.rglob("libcudart.so.12")
    folders = [str(runtime.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return path, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}


_NEEDED = re.compile(r"/perf_analyzer$|/libcudart\.so\.12$")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """``plain`` batches, ``steps`` takes sequences; a batch takes 4 ms."""
    folder = tmp_path_factory.mktemp("measured")
    store = folder / "store"
    for name, text in CONFIGS.items():
        archived(store, name, HANDLER, VERSIONS[name], text)
    with serving(grpc_server(folder, store, shared_memory_prefix="/")) as started:
        for name in CONFIGS:
            started.registered(f"{name}.mar")
        yield started


def run(program, server, *options):
    """What the program prints; it must end well, and without a word of an error."""
    path, environment = program
    http = "grpc" not in options
    at = server.port if http else server.settings["grpc_inference_port"]
    command = [path, "-u", f"127.0.0.1:{at}", *options, *SHORT.split()]
    done = run_to_end(command, server.home.path, environment)
    document = done.stdout + done.stderr

    assert done.returncode == 0, document
    assert not re.search(r"(?i)error:|had error|failed to (?!update context stat)", document), document
    return document


def figure(document, text):
    """The number after a text, of the last measurement."""
    result = re.findall(rf"{text}: (\d+)", document)
    assert result, document
    return int(result[-1])


@pytest.mark.parametrize(
    "options",
    [
        ("-m", "plain", "-i", "http", "--shared-memory", "system", "--concurrency-range", "4", "-b", "4"),
        ("-m", "steps", "-i", "grpc", "--streaming", "--num-of-sequences", "3", "--request-rate-range", "60"),
    ],
    ids=["shared memory", "a stream of sequences"],
)
def test_figures_of_both_sides_agree(program, server, options):
    """The server counts the requests that the client counts, but for those at the edges of the window; its
    latency is within the client's, and its parts make it up.
    """
    document = run(program, server, *options)
    count, rows = figure(document, "Request count"), 4 if "-b" in options else 1
    edges = 8
    (parts,) = re.findall(
        r"Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec"
        r" \+ compute input (\d+) usec \+ compute infer (\d+) usec \+ compute output (\d+) usec\)",
        document,
    )
    latency, *spent = map(int, parts)

    assert count > 20
    assert abs(figure(document, "Successful request count") - count) <= edges
    assert abs(figure(document, "Inference count") - rows * count) <= rows * edges
    assert 0 < figure(document, "Execution count") <= figure(document, "Inference count")
    assert abs(sum(spent) - latency) <= len(spent)
    assert 4000 <= spent[3] <= latency <= figure(document, "Avg latency") * 1.1
    assert server.inference.get("/v2/systemsharedmemory/status").json() == []


def test_torchserve_requests_are_served(program, server, tmp_path):
    (tmp_path / "body").write_bytes(b"a row")
    data = {"data": [{"TORCHSERVE_INPUT": [str(tmp_path / "body")]}]}
    (tmp_path / "data.json").write_text(json.dumps(data))
    options = "-m plain --service-kind torchserve -i http --input-data"
    document = run(program, server, *options.split(), str(tmp_path / "data.json"))

    assert figure(document, "Request count") > 20
