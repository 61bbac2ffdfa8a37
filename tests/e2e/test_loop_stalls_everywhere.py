"""No request holds up the others on any other route either, nor with front ends before the server.

The routes of ``test_loop_stalls.py`` are here again where front ends have work of their own with them.
"""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.e2e.grpc_client import INFERENCE, channel, grpc_server, predict, stub
from tests.e2e.serving import serving, wait_until
from tests.e2e.stalls import MOST, asking, field, listed, many, merging, raw, tensor, undisturbed, v2

from modelserver.tools.archiver import ArchiveConfig, WorkflowConfig, build_archive, build_workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx
    from tests.e2e.serving import Server

JSON = {"content-type": "application/json"}
GZIP = {"content-encoding": "gzip"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
FUNCTIONS = """
def same(data, context):
    return data and [bytes(row.get("body") or row.get("data") or b"") for row in data]


def left(data, context):
    return same(data, context)


def right(data, context):
    return data and ["r" * 3_000_000 for _ in data]
"""
# Says something else each time, as long as its body.
CHANGING = """
import itertools, json

numbers = itertools.count()


def handle(data, context):
    return data and [json.dumps([next(numbers) for _ in range(400_000)]) for _ in data]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_store: Path) -> Iterator[Server]:
    """Two front ends; ``mirror``, ``echo``, ``obey``, ``parts``, workflows, ``shadowed`` with a shadow."""
    folder = tmp_path_factory.mktemp("everywhere")
    store = folder / "store"
    store.mkdir()
    for name in ("mirror", "echo", "obey", "explains"):
        shutil.copy(model_store / f"{name}.mar", store)
    (folder / "functions.py").write_text(FUNCTIONS)
    for name, dag in (("line", "same: [left]"), ("fork", "same: [left, right]")):
        (folder / f"{name}.yaml").write_text(f"models: {{timeout-ms: 60000}}\ndag:\n  {dag}\n")
        build_workflow(
            WorkflowConfig(name, folder / f"{name}.yaml", folder / "functions.py", export_path=store)
        )
    (folder / "changing.py").write_text(CHANGING)
    for version in ("1.0", "2.0"):
        made = build_archive(
            ArchiveConfig("changing", str(folder / "changing.py"), version, export_path=folder)
        )
        made.rename(store / f"changing-{version}.mar")
    settings = {"frontend_processes": 2, "workflow_store": store, "allow_recording": "true"}
    with serving(grpc_server(folder, store, **settings)) as started:
        for name in ("mirror", "echo", "explains"):
            started.registered(f"{name}.mar", batch_size=64, max_batch_delay=1, response_timeout=120)
        started.registered("obey.mar", response_timeout=120)
        for name in ("line", "fork"):
            answer = started.management.post("/workflows", params={"url": f"{name}.war"}, timeout=60)
            assert answer.status_code == 200, answer.text
        yield started


# Inference

ONE = tensor(b"INT8", b"1", b"1")
V2_EXPLAIN = "/v2/models/explains/explain"
BODIES: dict[str, tuple[str, Callable[[], bytes], dict[str, str], int]] = {
    "bytes": ("/predictions/echo", lambda: bytes(MOST), {}, 200),
    "V2": ("/v2/models/mirror/infer", lambda: listed(b"FP32", b"0.12345"), {}, 200),
    "V2 rows of BYTES": ("/v2/models/mirror/infer", lambda: listed(b"BYTES", b'"abc"', rows=True), {}, 413),
    "V1 instances": (
        "/v1/models/echo:predict", lambda: b'{"instances":[' + many(b"1")[1][:-20] + b"]}", {}, 413
    ),
    "gzip": ("/predictions/echo", lambda: gzip.compress(bytes(MOST)), GZIP, 200),
    "form": ("/invocations", lambda: b"model_name=" + b"%41" * (MOST // 3 - 10), FORM, 404),
    "query": ("/invocations?" + "a&" * 30_000, lambda: b"", {}, 400),
    "path": ("/predictions/" + "%41" * 20_000, lambda: b"", {}, 404),
    "too large": ("/predictions/echo", lambda: bytes(8_000_000), {}, 413),
    "no such route": ("/nowhere", lambda: bytes(MOST), {}, 404),
    "invoke": ("/models/echo/invoke", lambda: bytes(MOST), {}, 200),
    "invoke, a form": ("/models/echo/invoke", lambda: b"a=" + b"%41" * (MOST // 3 - 10), FORM, 200),
    "invoke, parts": (
        "/models/echo/invoke",
        lambda: (b"\r\n--a\r\ncontent-disposition:" + b'a="\\' * 2000) * (MOST // 8030),
        {"content-type": "multipart/form-data; boundary=a"},
        400,
    ),
    "invoke, a query": ("/models/echo/invoke?" + "a&" * 30_000, lambda: b"", {}, 400),
    "V2 explain, rows of BYTES": (V2_EXPLAIN, lambda: listed(b"BYTES", b'"abc"', rows=True), {}, 413),
    "V2 explain, FP32": (V2_EXPLAIN, lambda: listed(b"FP32", b"0.12345", size=2_000_000), {}, 200),
    "V2 explain, parameters": (
        V2_EXPLAIN,
        lambda: v2(ONE, b',"parameters":{' + b",".join(b'"%d":1' % n for n in range(500_000)) + b"}"),
        {},
        400,
    ),
    "V2 explain, nesting": (V2_EXPLAIN, lambda: v2(tensor(b"INT8", b"1", many(b"[[[[1]]]]")[1])), {}, 400),
    "workflow": ("/wfpredict/line", lambda: bytes(MOST), {}, 200),
    "workflow, gzip": ("/wfpredict/line", lambda: gzip.compress(bytes(MOST)), GZIP, 200),
    "workflow, JSON": ("/wfpredict/line", lambda: b"[" + many(b"1")[1][:-20] + b"]", JSON, 200),
    # Both ends' answers are joined into one.
    "workflow, two ends": ("/wfpredict/fork", lambda: b"[" + many(b"1", 3_000_000)[1] + b"]", {}, 200),
    "workflow, two ends of text": ("/wfpredict/fork", lambda: b'"\\' * 1_500_000, {}, 200),
    "workflow, a query": ("/wfpredict/line?" + "a&" * 30_000, lambda: b"", {}, 200),
    "no workflow": ("/wfpredict/" + "%41" * 20_000, lambda: bytes(MOST), {}, 404),
}  # fmt: skip
QUICK = ("V2 rows of BYTES", "invoke, a form", "V2 explain, rows of BYTES", "workflow")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BODIES]
)
def test_bodies_of_inference(server: Server, name: str) -> None:
    """Whatever a front end is sent for inference, it, the other and the server answer others meanwhile."""
    path, make, headers, status = BODIES[name]
    body = make()

    answer = undisturbed(
        server, lambda: server.inference.post(path, content=body, headers=headers, timeout=120)
    )

    assert answer.status_code == status, answer.text[:300]


# Management


def document(value: Any) -> bytes:
    """A JSON body of parameters, as large as one may be, or larger."""
    return json.dumps(value).encode()


def filled(piece: bytes) -> bytes:
    """A JSON object of about as many bytes as a body of parameters may have."""
    return b'{"weights":' + piece + b"}"


TRAFFIC = "/models/echo/traffic"
MANAGEMENT: dict[str, tuple[str, str, Callable[[], bytes], dict[str, str], int]] = {
    "workflow, a large body": ("POST", "/workflows", lambda: document({"url": "." * MOST}), JSON, 413),
    "workflow, many fields": (
        "POST", "/workflows", lambda: document({f"a{n}": 1 for n in range(7_000)}), JSON, 400
    ),
    "workflow, a long URL": ("POST", "/workflows?url=" + "." * 60_000, lambda: b"", {}, 400),
    "workflow, escapes": ("POST", "/workflows?url=http://a/" + "%252e" * 1500, lambda: b"", {}, 404),
    "workflow, a body that nobody reads": ("POST", "/workflows?url=no.war", lambda: bytes(MOST), {}, 404),
    "workflows": ("GET", "/workflows?" + "a&" * 30_000, lambda: b"", {}, 400),
    "workflow by name": ("GET", "/workflows/" + "%41" * 20_000, lambda: b"", {}, 404),
    "traffic, a large body": ("PUT", TRAFFIC, lambda: filled(b"[" * MOST), JSON, 413),
    "traffic, nesting": ("PUT", TRAFFIC, lambda: filled(b"[" * 100_000), JSON, 400),
    "traffic, many versions": (
        "PUT", TRAFFIC, lambda: document({f"{n}.0": 0 for n in range(7_000)}), JSON, 400
    ),
    "traffic, a long number": ("PUT", TRAFFIC, lambda: filled(b"9" * 100_000), JSON, 400),
    "traffic, a long fraction": ("PUT", TRAFFIC, lambda: b'{"1.0":%b}' % (b"0." + b"9" * 100_000), JSON, 400),
    "traffic, a long header": ("PUT", TRAFFIC, lambda: document({"sticky": "a" * 100_000}), JSON, 400),
    "traffic, many shadows": (
        "PUT",
        TRAFFIC,
        lambda: document({"shadow": {f"{n}.0": {"percent": 1} for n in range(3_500)}}),
        JSON,
        400,
    ),
    "traffic of a long name": ("PUT", f"/models/{'%41' * 11_000}/traffic", lambda: document({}), JSON, 404),
    "shadow": ("GET", "/models/echo/shadow?" + "a&" * 30_000, lambda: b"", {}, 400),
    "shadow, a body that nobody reads": ("GET", "/models/echo/shadow", lambda: bytes(MOST), {}, 200),
    "recording, many models": ("POST", "/recording?" + "model=a&" * 7_000, lambda: b"", {}, 400),
    "recording, a long name": ("POST", "/recording?model=" + "a" * 60_000, lambda: b"", {}, 404),
    "recording, long numbers": ("POST", "/recording?requests=" + "9" * 8_000, lambda: b"", {}, 400),
    "recording, a long share": ("POST", "/recording?sample=0." + "9" * 8_000 + "x", lambda: b"", {}, 400),
    "try": ("POST", "/console/try/predictions/echo", lambda: bytes(MOST), {}, 200),
    "try, gzip": ("POST", "/console/try/predictions/echo", lambda: gzip.compress(bytes(MOST)), GZIP, 200),
    "try, V2": ("POST", "/console/try/v2/models/mirror/infer", lambda: listed(b"FP32", b"0.12345"), {}, 200),
    "try, V2 rows of BYTES": (
        "POST",
        "/console/try/v2/models/mirror/infer",
        lambda: listed(b"BYTES", b'"abc"', rows=True),
        {},
        413,
    ),
    "try, a path": ("POST", "/console/try/predictions/" + "%41" * 20_000, lambda: b"", {}, 404),
    "try, no route": ("POST", "/console/try/nowhere", lambda: bytes(MOST), {}, 404),
    "estimate, a large body": ("POST", "/console/estimate", lambda: bytes(MOST), {}, 413),
    "estimate, nesting": ("POST", "/console/estimate", lambda: b'{"model":' + b"[" * 16_000, {}, 400),
}  # fmt: skip
QUICK_MANAGEMENT = ("workflow, many fields", "traffic, many versions", "recording, many models", "try")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK_MANAGEMENT else pytest.mark.slow) for n in MANAGEMENT],
)
def test_management(server: Server, name: str) -> None:
    """Whatever is asked of workflows, traffic, recordings and the console, the others are answered."""
    method, path, make, headers, status = MANAGEMENT[name]
    body = make()

    answer = undisturbed(
        server, lambda: server.management.request(method, path, content=body, headers=headers, timeout=60)
    )

    assert answer.status_code == status, answer.text[:300]


@pytest.mark.slow
def test_estimates(server: Server) -> None:
    """A hundred times the requests that came, by as many workers as may be."""
    for _ in range(100):
        assert server.predict("echo", b"x").status_code == 200
    now = {"size": 8, "policy": "adaptive", "delay": 1, "workers": 1, "queue": 1000}
    asked = {"model": "echo", "version": "1.0", "now": now, "then": {**now, "workers": 64}, "factor": 100}

    answer = undisturbed(server, lambda: server.management.post("/console/estimate", json=asked, timeout=60))

    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["requests"] >= 4000


WORKFLOW_FILES: dict[str, tuple[bytes, bytes]] = {
    "merge keys": (merging(12), b""),
    "keys": (b"".join(b"key%d: 1\n" % n for n in range(30_000)), b""),
    "nesting": (b"dag: " + b"[" * 500_000, b""),
    "nodes": (b"dag:\n" + b"".join(b"  n%d: [n%d]\n" % (n, n + 1) for n in range(1_000)), b""),
    "edges": (
        b"dag:\n" + b"".join(b"  n%d: [%b]\n" % (n, b", ".join(b"n%d" % m for m in range(n + 1, 200)))
                             for n in range(200)),
        b"",
    ),
    "functions": (
        b"dag:\n  f0: [missing]\n",
        b"".join(b"def f%d(data, context): pass\n" % n for n in range(50_000)),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKFLOW_FILES)
def test_archives_of_workflows(server: Server, tmp_path: Path, name: str) -> None:
    """What a workflow's archive makes of its files is for a process of its own to find out."""
    specification, functions = WORKFLOW_FILES[name]
    path = Path(str(server.settings["workflow_store"])) / f"{tmp_path.name}.war"
    described = {"workflowName": "heavy", "specFile": "spec.yaml", "handler": "functions.py"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("WAR-INF/MANIFEST.json", json.dumps({"workflow": described}))
        archive.writestr("spec.yaml", specification)
        archive.writestr("functions.py", functions)

    answer = undisturbed(
        server, lambda: server.management.post("/workflows", params={"url": path.name}, timeout=120)
    )

    assert answer.status_code == 400, answer.text[:300]


@pytest.mark.slow
def test_recording_and_shadows(server: Server) -> None:
    """While requests are recorded, and a shadow answers large ones differently, nobody waits for it."""
    for version in ("1.0", "2.0"):
        server.registered(f"changing-{version}.mar", response_timeout=120)
    plan = {"shadow": {"2.0": {"percent": 100, "compare": "numeric"}}}
    assert server.management.put("/models/changing/traffic", json=plan).status_code == 200

    def ask() -> tuple[httpx.Response, bytes]:
        before = compared(server)
        with server.management.stream("POST", "/recording?requests=1", timeout=60) as frames:
            answer = server.predict("changing", bytes(MOST), timeout=60)
            recorded = frames.read()
        wait_until(lambda: compared(server) > before, "the shadow is compared")
        return answer, recorded

    answer, recorded = undisturbed(server, ask)

    assert answer.status_code == 200
    assert len(recorded) > MOST + len(answer.content) > MOST + 1_000_000


def compared(server: Server) -> int:
    """How many answers of the shadow were compared."""
    copies = server.management.get("/models/changing/shadow").json()["shadows"]["2.0"]["copies"]
    return int(copies.get("differed", 0) + copies.get("agreed", 0) + copies.get("not_compared", 0))


@pytest.mark.slow
def test_a_large_source_file(server: Server, tmp_path: Path) -> None:
    """The code of a model is read for what it imports, here torch, by a process of its own."""
    code = tmp_path / "large.py"
    handler = "def handle(data, context):\n    return data and [b'done' for _ in data]\n"
    code.write_text(handler + "x = [\n" + "    1 + 2,\n" * 100_000 + "]\nif not x:\n    import torch\n")
    assert code.stat().st_size > 1_000_000

    def register() -> httpx.Response:
        store = str(server.settings["model_store"])
        build_archive(ArchiveConfig("large", str(code), "1.0", export_path=store, force=True))
        # What was found out of a file is kept: another attempt needs another file.
        code.write_text(code.read_text() + "\n")
        answer = server.management.post("/models?url=large.mar&initial_workers=1", timeout=120)
        assert server.predict("large", b"").content == b"done"
        server.unregister("large")
        return answer

    assert undisturbed(server, register).status_code == 200


# gRPC

OIP = "inference.GRPCInferenceService"
THEIRS = f"{INFERENCE}InferenceAPIsService"
STREAMS: dict[str, tuple[str, str, Callable[[], bytes], str]] = {
    "predictions": (
        THEIRS, "StreamPredictions", lambda: predict("echo", data=bytes(MOST)).SerializeToString(), "OK"
    ),
    "inputs of a prediction": (
        THEIRS,
        "StreamPredictions",
        lambda: asking(*(field(3, field(1, b"%d" % n)) for n in range(500_000)), model=b"echo"),
        "INVALID_ARGUMENT",
    ),
    "tensors": (OIP, "ModelStreamInfer", lambda: asking(*raw(b"FP32")), "OK"),
    "inputs": (OIP, "ModelStreamInfer", lambda: asking(field(5, b"") * (MOST // 2 - 20)), "OK"),
    "parameters": (
        OIP,
        "ModelStreamInfer",
        lambda: asking(*(field(4, field(1, b"%d" % n) + field(2, b"\x10\1")) for n in range(400_000))),
        "OK",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_streams(server: Server, name: str) -> None:
    """Whatever a message has in it that is answered in parts, the others are answered meanwhile."""
    service, method, make, code = STREAMS[name]
    body = make()

    def call() -> str:
        asked = iter([body, body]) if method == "ModelStreamInfer" else body
        try:
            for _ in getattr(stub(to, service), method)(asked, timeout=60):
                pass
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    with channel(server, "inference") as to:
        stub(to, OIP).ServerLive(b"", timeout=20)
        assert undisturbed(server, call) == code


# HTTP itself


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [b"1\r\nx\r\n", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["chunks", "requests"]
)
def test_tiny_pieces(server: Server, piece: bytes) -> None:
    """A body in millions of chunks, and thousands of requests at once, leave a front end time for others."""
    head = b"POST /predictions/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = head + piece * 500_000 + b"0\r\n\r\n" if piece[:1] == b"1" else piece * 1_000

    def send() -> bytes:
        received = b""
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            writing = threading.Thread(target=connection.sendall, args=(sent,))
            writing.start()
            while received.count(b"HTTP/1.1 200 ") < (1 if sent.startswith(b"POST") else 1_000):
                received += connection.recv(1 << 20)
            writing.join()
        return received

    assert undisturbed(server, send).startswith(b"HTTP/1.1 200 ")
