"""No request holds up the others: the event loop is never held for long, whatever a body has in it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import statistics
import threading
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from tests.e2e.grpc_client import PATIENCE, channel, grpc_server, stub
from tests.e2e.serving import serving, wait_until
from tests.e2e.stalls import MOST, asking, field, given, listed, many, merging, raw, tensor, undisturbed, v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx
    from tests.e2e.serving import Server

MODEL_CODE = Path(__file__).parent / "model_code"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_store: Path) -> Iterator[Server]:
    """``mirror`` gives back what it gets, ``echo`` too, in batches."""
    folder = tmp_path_factory.mktemp("stalls")
    store = folder / "store"
    store.mkdir()
    for name in ("mirror", "echo", "obey"):
        shutil.copy(model_store / f"{name}.mar", store)
    with serving(grpc_server(folder, store)) as started:
        started.registered("mirror.mar", batch_size=64, max_batch_delay=1, response_timeout=120)
        started.registered("echo.mar", batch_size=64, max_batch_delay=1, response_timeout=120)
        started.registered("obey.mar", response_timeout=120)
        yield started


ONE = tensor(b"INT8", b"1", b"1")

V2 = "/v2/models/mirror/infer"
V1 = "/v1/models/echo:predict"
BODIES: dict[str, tuple[str, Callable[[], bytes], dict[str, str], int]] = {
    "v2 rows of BYTES": (V2, lambda: listed(b"BYTES", b'"abc"', rows=True), {}, 413),
    # It comes back with the lengths of its elements, within the limit of answers.
    "v2 one row of BYTES": (V2, lambda: listed(b"BYTES", b'"a"', size=4_800_000), {}, 200),
    "v2 FP32": (V2, lambda: listed(b"FP32", b"0.12345"), {}, 200),
    "v2 UINT8": (V2, lambda: listed(b"UINT8", b"1"), {}, 200),
    "v2 10000 rows": (V2, lambda: v2(tensor(b"INT64", b"10000", many(b"1", 20_000)[1])), {}, 200),
    "v2 inputs": (
        V2,
        lambda: v2(b",".join(ONE.replace(b'"x"', b'"%d"' % n) for n in range(100_000))),
        {},
        400,
    ),
    "v2 outputs": (
        V2,
        lambda: v2(ONE, b',"outputs":[' + b",".join(b'{"name":"%d"}' % n for n in range(100_000)) + b"]"),
        {},
        400,
    ),
    "v2 parameters": (
        V2,
        lambda: v2(ONE, b',"parameters":{' + b",".join(b'"%d":1' % n for n in range(500_000)) + b"}"),
        {},
        400,
    ),
    "v2 nesting": (V2, lambda: v2(tensor(b"INT8", b"1", many(b"[[[[1]]]]")[1])), {}, 400),
    "v2 text": (V2, lambda: v2(tensor(b"BYTES", b"1", b'"' + rb"\"" * (MOST // 2 - 100) + b'"')), {}, 200),
    "v2 shape": (V2, lambda: v2(tensor(b"INT8", many(b"1")[1][:-100], b"1")), {}, 400),
    "v2 binary BYTES": (
        V2,
        lambda: (
            v2(b'{"name":"x","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6400000}}')
            + bytes(6_400_000)
        ),
        {"inference-header-content-length": "97"},
        400,
    ),
    "v1 instances": (V1, lambda: b'{"instances":[' + many(b"1")[1][:-20] + b"]}", {}, 413),
    "v1 one instance": (V1, lambda: b'{"instances":[[' + many(b"0.25")[1][:-20] + b"]]}", {}, 200),
    "v1 10000 instances": (V1, lambda: b'{"instances":[' + many(b"1", 20_000)[1] + b"]}", {}, 200),
    "v1 fields": (V1, lambda: b"{" + b",".join(b'"%d":1' % n for n in range(500_000)) + b"}", {}, 400),
    "form": (
        "/invocations",
        lambda: b"model_name=" + b"%41" * (MOST // 3 - 10),
        {"content-type": "application/x-www-form-urlencoded"},
        404,
    ),
    "parts": (
        "/invocations",
        lambda: (b"\r\n--a\r\ncontent-disposition:" + b'a="\\' * 2000) * (MOST // 8030),
        {"content-type": "multipart/form-data; boundary=a"},
        400,
    ),
    "gzip": ("/predictions/echo", lambda: gzip.compress(bytes(MOST)), {"content-encoding": "gzip"}, 200),
    "query": ("/invocations?" + "a&" * 30_000, lambda: b"", {}, 400),
    "path": ("/predictions/" + "%41" * 20_000, lambda: b"", {}, 404),
}
QUICK = ("v2 rows of BYTES", "v2 FP32", "v2 parameters", "v1 instances", "form", "query")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BODIES]
)
def test_bodies_of_inference(server: Server, name: str) -> None:
    """Whatever a body for inference has in it, the others are answered meanwhile."""
    path, make, headers, status = BODIES[name]
    body = make()
    assert len(body) < 6_553_500

    answer = undisturbed(
        server, lambda: server.inference.post(path, content=body, headers=headers, timeout=120)
    )

    assert answer.status_code == status, answer.text[:300]


MANAGEMENT: dict[str, tuple[str, str, Callable[[], bytes], int]] = {
    "registration": ("POST", "/models", lambda: json.dumps({"url": "." * MOST}).encode(), 413),
    "registration fields": (
        "POST", "/models", lambda: json.dumps({f"a{n}": 1 for n in range(400_000)}).encode(), 413
    ),
    "url": ("POST", "/models?url=" + "." * 60_000, lambda: b"", 400),
    "url of escapes": ("POST", "/models?url=http://a/" + "%252e" * 12_000, lambda: b"", 400),
    "parameters": ("GET", "/models?" + "a&" * 30_000, lambda: b"", 400),
    "scaling": ("PUT", "/models/echo?min_worker=" + "9" * 60_000, lambda: b"", 400),
    "path": ("GET", "/models/" + "a/" * 30_000, lambda: b"", 404),
    "index": ("POST", "/v2/repository/index", lambda: b'{"ready":[' + many(b"1")[1][:-20] + b"]}", 413),
    "load": ("POST", "/v2/repository/models/x/load", lambda: b'{"parameters":{"a":"' + b"a" * MOST, 413),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("registration", "url") else pytest.mark.slow) for n in MANAGEMENT],
)
def test_management(server: Server, name: str) -> None:
    """Whatever a request to the management port says, inference goes on; what is refused says why."""
    method, path, make, status = MANAGEMENT[name]
    body = make()

    answer = undisturbed(
        server, lambda: server.management.request(method, path, content=body, headers=JSON, timeout=60)
    )

    assert answer.status_code == status, answer.text[:300]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "told"),
    [
        (merging(12), "more than 100000 values"),
        (b"".join(b"key%d: 1\n" % n for n in range(100_000)), "larger than 1048576 bytes"),
        (b"".join(b"k%d: 1\n" % n for n in range(80_000)), ""),
        (b"a: " + b"[" * 500_000, "cannot be read"),
    ],
    ids=["merge keys", "too large", "keys", "nesting"],
)
def test_configurations(server: Server, tmp_path: Path, config: bytes, told: str) -> None:
    """What a small archive makes of its configuration is for a process of its own to find out."""
    name = f"m{tmp_path.name}"
    path = Path(str(server.settings["model_store"])) / f"{name}.mar"
    manifest = {"model": {"modelName": name, "handler": "echo.py", "configFile": "model-config.yaml"}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.write(MODEL_CODE / "echo.py", "echo.py")
        archive.writestr("model-config.yaml", config)

    def register() -> httpx.Response:
        parameters = {"url": f"{name}.mar", "initial_workers": "0"}
        answer = server.management.post("/models", params=parameters, timeout=120)
        if answer.status_code == 200:
            server.unregister(name)
        return answer

    answer = undisturbed(server, register)

    assert (answer.status_code == 200) is not bool(told)
    assert told in answer.text


@pytest.mark.slow
@pytest.mark.parametrize(("entries", "told"), [(15_000, ""), (100_000, "more than 20000 entries")])
def test_archives_of_many_entries(server: Server, entries: int, told: str) -> None:
    """Archives of many files are read, and refused, by a process of its own."""
    path = Path(str(server.settings["model_store"])) / f"entries{entries}.mar"
    shutil.copy(path.with_name("echo.mar"), path)
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(entries):
            archive.writestr(f"{number}", b"")

    def register() -> httpx.Response:
        answer = server.register(path.name, model_name="entries", initial_workers=0)
        if answer.status_code == 200:
            server.unregister("entries")
        return answer

    answer = undisturbed(server, register)

    assert (answer.status_code == 200) is not bool(told)
    assert told in answer.text


# gRPC


CALLS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "inputs": ("ModelInfer", lambda: asking(field(5, b"") * (MOST // 2 - 20)), "INVALID_ARGUMENT"),
    "parameters": (
        "ModelInfer",
        lambda: asking(*(field(4, field(1, b"%d" % n) + field(2, b"\x10\1")) for n in range(400_000))),
        "INVALID_ARGUMENT",
    ),
    "raw contents": ("ModelInfer", lambda: asking(field(7, b"") * (MOST // 2 - 20)), "INVALID_ARGUMENT"),
    "typed BYTES": (
        "ModelInfer",
        lambda: asking(given(b"BYTES", field(8, b"a") * 2_000_000, 2_000_000), model=b"obey"),
        "OK",
    ),
    "typed INT8": (
        "ModelInfer",
        lambda: asking(given(b"INT8", field(2, b"\1" * MOST), MOST), model=b"obey"),
        "OK",
    ),
    "typed FP32": ("ModelInfer", lambda: asking(given(b"FP32", field(6, bytes(6_400_000)), 1_600_000)), "OK"),
    "raw BYTES": ("ModelInfer", lambda: asking(*raw(b"BYTES"), model=b"obey"), "OK"),
    "raw FP32": ("ModelInfer", lambda: asking(*raw(b"FP32"), model=b"obey"), "OK"),
    "inputs of a prediction": (
        "Predictions",
        lambda: asking(*(field(3, field(1, b"%d" % n)) for n in range(500_000)), model=b"echo"),
        "INVALID_ARGUMENT",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("inputs", "typed FP32") else pytest.mark.slow) for n in CALLS]
)
def test_calls(server: Server, name: str) -> None:
    """Whatever a message of gRPC has in it, the others are answered meanwhile."""
    method, make, code = CALLS[name]
    body = make()
    service = "inference.GRPCInferenceService"
    if method == "Predictions":
        service = "org.pytorch.serve.grpc.inference.InferenceAPIsService"

    def call() -> str:
        try:
            getattr(stub(to, service), method)(body, timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    with channel(server, "inference") as to:
        stub(to, "inference.GRPCInferenceService").ServerLive(b"", timeout=PATIENCE)
        assert undisturbed(server, call) == code


# What handlers print


def latencies(server: Server, seconds: float = 0.0, until: Callable[[], bool] = lambda: True) -> float:
    """The median time that ``echo`` takes to answer, while something goes on."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not until():
        began = time.monotonic()
        assert server.predict("echo", b"x").status_code == 200
        found.append(time.monotonic() - began)
    return statistics.median(found)


@pytest.mark.slow
@pytest.mark.alone
def test_a_handler_that_prints(server: Server) -> None:
    """While one handler prints without end, the others answer as ever; it comes to its end (F44)."""
    quiet = latencies(server, 2.0)
    answers: list[httpx.Response] = []
    order = {"do": "lines", "count": 300_000}

    def ask() -> None:
        answers.append(server.predict("obey", order, timeout=120))

    def print_lines() -> float:
        printing = threading.Thread(target=ask, daemon=True)
        printing.start()
        return latencies(server, 1.0, until=lambda: not printing.is_alive())

    loud = undisturbed(server, print_lines)

    assert answers[0].text == "printed"
    assert loud < 3 * quiet

    def told() -> int:
        """Lines in the log, and lines that it says were dropped: a busy machine prints more slowly."""
        log = server.home.log("model_log.log")
        dropped = re.findall(r"\[(\d+) lines were dropped", log)
        return log.count("MODEL_LOG - a line") + sum(map(int, dropped))

    wait_until(lambda: told() == len(answers) * order["count"], "every line is written or counted")
