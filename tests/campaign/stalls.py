"""One large body of each structure for each route, and for how long it keeps the event loop from answering
``/livez`` on all ports. Waiting for a processor, which the machine's other work causes, does not count.
"""

import contextlib
import functools
import gzip
import json
import re
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tests.campaign import frames
from tests.campaign.callers import receive_answer
from tests.campaign.report import Report
from tests.campaign.targets import target, tracebacks
from tests.e2e.grpc_client import INFERENCE, MANAGEMENT, channel, manage, oip, predict, stub
from tests.e2e.raw import connect, post
from tests.e2e.serving import Server

from modelserver.engine.telemetry.metrics import STALL_BOUNDS
from modelserver.surface.http.content import MAX_PARAMETERS_BODY
from modelserver.tools.archiver import ArchiveConfig, WorkflowConfig, build_archive, build_workflow

SIZE = 6_000_000  # bytes; max_request_size is 6,553,500
MOST_PARAMETERS = MAX_PARAMETERS_BODY - 40  # with a little that stands beside it
LONGEST_STALL = 0.05  # seconds
# The shortest stall that the server counts, and the longest that it may have, in seconds.
SHORTEST, LONGEST_OWN = 0.01, 0.02
TOO_LONG = "the loop was held for too long"
PAUSE = 0.005
# Shorter runs are against one process only.
BOTH_SECONDS = 60.0
# Left out of shorter runs: they take seconds of a processor, and another body has nearly the same structure.
COSTLY = (
    "V2: a row of 1,0",
    "V2: a row of 1,5",
    "V2: a row of 3",
    "V2: 3,",
    "V2 binary: 1",
    "V2 binary: inputs",
    "V1: numbers",
    "V1: texts",
    "V1: lists",
    "V1: keys",
    "V1 explain: objects",
    "V1 explain: one instance",
    "inference /v1/models/echo:predict: its",
    "/v2/models/echo/explain: V2 rows",
    "POST /console/try/v2",
    "/models/echo/invoke: a form",
    "an archive: merge",
    "a workflow: keys",
    "a workflow: functions",
    "gRPC: 1,2",
)
# Seconds of a processor for :func:`slowness` on the machine that the bounds are for.
REFERENCE = 0.011
ANSWER_SECONDS = 60.0
MOST_ROUNDS = 1000
METRIC = "modelserver_loop_stall_seconds"


@functools.cache
def slowness() -> int:
    """How many times slower this machine computes than the one that the bounds are for, at least 1."""
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        sum(number % 7 for number in range(200_000))
        seconds.append(time.thread_time() - began)
    return max(1, round(min(seconds) / REFERENCE))


@dataclass(frozen=True)
class Heavy:
    """What is sent, and what came back: a status, or a code of gRPC."""

    name: str
    send: Callable[[Server], str]


def run(report: Report, seconds: float) -> None:
    """All bodies, as often as there is time, once at least; one process and two front ends."""
    if not Path("/proc/self/schedstat").exists():
        report.skip("stalls", "this system does not tell how long a thread waited for a processor")
        return
    for front_ends in (1, 2) if seconds >= BOTH_SECONDS else (1,):
        what = "one process" if front_ends == 1 else f"{front_ends} front ends"
        with target(front_ends, allow_recording="true") as server:
            server.registered("echo.mar")
            build_archives(Path(str(server.settings["model_store"])))
            prepare_extensions(server)
            tell(report, server, what, rounds(server, bodies, seconds / 2))
        with target(front_ends, token_authorization="always") as server:
            tokens = server.tokens()
            for scope, client in (("inference", server.inference), ("management", server.management)):
                client.headers["Authorization"] = f"Bearer {tokens[scope]}"
            server.registered("echo.mar")
            what = f"{what}, tokens"
            tell(report, server, what, rounds(server, functools.partial(with_tokens, tokens), seconds / 10))


def rounds(server: Server, make: Callable[[], Iterable[Heavy]], seconds: float) -> dict[str, float]:
    """The longest stall for each body and answer; all are sent as often as there is time, once at least."""
    end = time.monotonic() + seconds
    longest: dict[str, float] = {}
    for round_ in range(MOST_ROUNDS):
        if round_ and time.monotonic() > end:
            break
        for heavy in make():
            if seconds < BOTH_SECONDS / 10 and heavy.name.startswith(COSTLY):
                continue
            stall, outcome = undisturbed(server, heavy)
            longest[f"{heavy.name} ({outcome})"] = max(longest.get(f"{heavy.name} ({outcome})", 0.0), stall)
    return longest


def tell(report: Report, server: Server, what: str, longest: dict[str, float]) -> None:
    """A figure for each body; those over the bound, or without an answer, did not hold."""
    for name, stall in longest.items():
        report.figure(f"{what}: {name}", f"{stall * 1000:.0f} ms")
        report.hold(
            stall <= LONGEST_STALL * slowness(),
            f"{what}: {name}: the loop answered nobody for {stall * 1000:.0f} ms",
        )
        report.hold("no answer" not in name and TOO_LONG not in name, f"{what}: {name}")
    count = server.metric(f"{METRIC}_count")
    report.figure(f"{what}: stalls of {SHORTEST * 1000:g} ms or more, as the server counts them", count)
    report.figure(f"{what}: their sum", f"{server.metric(f'{METRIC}_sum') * 1000:.0f} ms")
    report.figure(f"{what}: of more than {longest_own() * 1000:g} ms", own_stalls(server))
    report.hold(server.predict("echo", b"x").content == b"x", f"{what}: no longer serves")
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")


def undisturbed(server: Server, heavy: Heavy) -> tuple[float, str]:
    """As :func:`stalled`. What holds up others does so each time; what the machine does besides does not."""
    before = own_stalls(server)
    for _ in range(3):
        stall, outcome = stalled(server, heavy)
        after = own_stalls(server)
        if stall <= LONGEST_STALL * slowness() and after == before:
            return stall, outcome
        before, own = after, after - before
    return stall, f"{outcome}, {TOO_LONG}" if own else outcome


def longest_own() -> float:
    """The bound for what the server itself counts: a bucket of its metric."""
    return min(bound for bound in STALL_BOUNDS if bound >= LONGEST_OWN * slowness())


def own_stalls(server: Server) -> float:
    """How many longer stalls the server has counted."""
    text = server.metrics.get("/metrics?name[]=" + METRIC).text
    counts = re.findall(rf'^{METRIC}_(?:bucket{{le="{longest_own()}"}}|count) (\d+)', text, re.MULTILINE)
    within, count = map(float, counts)
    return count - within


def stalled(server: Server, heavy: Heavy) -> tuple[float, str]:
    """For how many seconds the loop answered nobody while this was served, and what its answer was."""
    loops = [Path(f"/proc/{each.pid}/task/{each.pid}/schedstat") for each in server.processes()]
    watchers = [Watcher(server, listener, loops) for listener in ("inference", "management", "metrics")]
    for watcher in watchers:
        watcher.start()
    try:
        outcome = heavy.send(server)
    finally:
        for watcher in watchers:
            watcher.over.set()
        for watcher in watchers:
            watcher.join()
    return max(watcher.longest for watcher in watchers), outcome


class Watcher(threading.Thread):
    """Sends requests for ``/livez`` again and again. ``loops``: how long its threads waited to run."""

    def __init__(self, server: Server, listener: str, loops: list[Path]) -> None:
        super().__init__()
        self.over = threading.Event()
        self.longest = 0.0
        self._loops = loops
        self._port = server.port_of(listener)

    def run(self) -> None:
        ask = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        waits = [own, *self._loops]
        with connect(self._port, 600) as connection:
            while not self.over.is_set():
                queued, began = waited(waits), time.monotonic()
                connection.sendall(ask)
                receive_answer(connection)
                passed = time.monotonic() - began
                self.longest = max(self.longest, passed - (waited(waits) - queued))
                self.over.wait(PAUSE)


def waited(threads: list[Path]) -> float:
    """Seconds that threads waited for a processor so far: the second number of their schedstat."""
    return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9


def bodies() -> Iterator[Heavy]:
    """One after the other: each is large."""
    yield from v2_bodies()
    yield from v1_bodies()
    yield from plain_bodies()
    yield from explanation_bodies()
    yield from management_bodies()
    yield from changing_bodies()
    yield from archives()
    yield from grpc_messages()
    yield from grpc_management()
    yield from floods()
    yield from extension_bodies()


def by_http(name: str, listener: str, path: str, body: bytes, *lines: str, method: str = "POST") -> Heavy:
    """A request, POST unless told otherwise."""
    return of_bytes(name, listener, post(path, body, *lines).replace(b"POST", method.encode(), 1))


def of_bytes(name: str, listener: str, request: bytes) -> Heavy:
    """Whole requests; the answer to the first counts."""

    def send(server: Server) -> str:
        with connect(server.port_of(listener), ANSWER_SECONDS) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            try:
                answer = receive_answer(connection)
            except OSError as error:
                return f"no answer: {type(error).__name__}"
        return "no answer" if answer is None else str(answer.status)

    return Heavy(name, send)


def repeated(unit: bytes, size: int = SIZE) -> bytes:
    """As many of ``unit`` as fit, with commas between them."""
    return (b"%b," % unit * (size // (len(unit) + 1)))[:-1]


@functools.lru_cache(2)
def many_keys(size: int = SIZE) -> bytes:
    """The keys of a JSON object, as many as fit."""
    return b",".join(b'"k%d":1' % number for number in range(500_000))[:size].rpartition(b",")[0]


def v2_bodies() -> Iterator[Heavy]:
    """Open Inference, JSON and binary."""
    path, text = "/v2/models/echo/infer", "Content-Type: application/json"

    def of(name: str, body: bytes) -> Heavy:
        assert len(body) <= SIZE + 200, name
        return by_http(f"V2: {name}", "inference", path, body, text)

    tensor = b'{"name":"x","datatype":"%b","shape":[%d],"data":[%b]}'
    one = tensor % (b"FP32", 1, b"1")
    for name, datatype, unit in (
        ("BYTES", b"BYTES", b'"abc"'),
        ("numbers", b"FP32", b"1.5"),
        ("INT8", b"INT8", b"1"),
    ):
        data = repeated(unit)
        rows = data.count(unit)
        yield of(f"{rows:,} {name}", b'{"inputs":[%b]}' % (tensor % (datatype, rows, data)))
        in_one_row = (tensor % (datatype, rows, data)).replace(b'"shape":[', b'"shape":[1,')
        yield of(f"a row of {rows:,} {name}", b'{"inputs":[%b]}' % in_one_row)
    yield of("100,000 inputs", b'{"inputs":[%b]}' % repeated(one))
    outputs = repeated(b'{"name":"y"}')
    yield of("outputs", b'{"inputs":[%b],"outputs":[%b]}' % (one, outputs))
    parameters = many_keys()
    yield of("parameters", b'{"inputs":[%b],"parameters":{%b}}' % (one, parameters))
    of_tensor = one[:-1] + b',"parameters":{%b}}' % parameters
    yield of("parameters of a tensor", b'{"inputs":[%b]}' % of_tensor)
    yield of(
        "a shape without end",
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%b],"data":[]}]}' % repeated(b"1"),
    )
    yield of("nests", b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + b"[" * SIZE + b"}]}")
    yield of("a long text", b'{"id":"%b","inputs":[%b]}' % (b"i" * (SIZE - 200), one))
    raw = struct.pack("<I", 1) + b"x"
    count = SIZE // len(raw)
    size = {"binary_data_size": count * len(raw)}
    binary = {"name": "x", "datatype": "BYTES", "shape": [count], "parameters": size}
    head = json.dumps({"inputs": [binary]}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    yield by_http(f"V2 binary: {count:,} BYTES", "inference", path, head + raw * count, length)
    whole = b'{"inputs":[%b]}' % repeated(
        b'{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}'
    )
    length = f"Inference-Header-Content-Length: {len(whole)}"
    yield by_http("V2 binary: inputs", "inference", path, whole, length)


def v1_bodies() -> Iterator[Heavy]:
    path, text = "/v1/models/echo:predict", "Content-Type: application/json"
    for name, unit in (
        ("numbers", b"1"),
        ("texts", b'"ab"'),
        ("objects", b'{"a":1}'),
        ("lists", b"[[1],[2]]"),
    ):
        yield by_http(f"V1: {name}", "inference", path, b'{"instances":[%b]}' % repeated(unit), text)
    yield by_http("V1: nesting", "inference", path, b'{"instances":' + b"[" * SIZE, text)
    yield by_http("V1: keys", "inference", path, b'{"instances":[1],%b}' % many_keys(), text)
    one = b'{"instances":[{%b}]}' % many_keys()
    yield by_http("V1: one instance of many keys", "inference", path, one, text)


def plain_bodies() -> Iterator[Heavy]:
    """TorchServe's route and its relatives: bytes, forms, chunks, gzip."""
    path = "/predictions/echo"
    yield by_http("bytes", "inference", path, b"b" * SIZE)
    yield by_http("JSON", "inference", path, b"[%b]" % repeated(b"1"), "Content-Type: application/json")
    form = "Content-Type: multipart/form-data; boundary=b"
    part = b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\nx\r\n'
    parts = part * (SIZE // len(part)) + b"--b--\r\n"
    for route in (path, "/invocations"):
        yield by_http(f"{route}: a form of many parts", "inference", route, parts, form)
        dashes = b"--b\r\n" + b"\r\n--" * (SIZE // 4)
        yield by_http(f"{route}: a form of nothing but ends", "inference", route, dashes, form)
    fields = b"&".join(b"k%d=1" % number for number in range(SIZE // 12))
    urlencoded = "Content-Type: application/x-www-form-urlencoded"
    yield by_http("fields", "inference", "/invocations", fields, urlencoded)
    yield by_http("gzip", "inference", path, gzip.compress(b"\x00" * SIZE), "Content-Encoding: gzip")
    bomb = gzip.compress(bytes(1 << 28), 1)
    yield by_http("a gzip bomb of 256 MB", "inference", path, bomb, "Content-Encoding: gzip")
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    tiny = b"1\r\nx\r\n" * (SIZE // 6) + b"0\r\n\r\n"
    yield of_bytes("a million chunks", "inference", head + tiny)
    query = "&".join(f"p{number}=1" for number in range(7000))
    yield by_http("parameters in the query", "inference", f"{path}?{query}", b"")


def explanation_bodies() -> Iterator[Heavy]:
    """Explanations, of both protocols that have a route of their own for them."""
    path, text = "/explanations/echo", "Content-Type: application/json"
    yield by_http(f"{path}: bytes", "inference", path, b"b" * SIZE)
    yield by_http(f"{path}: JSON", "inference", path, b"[%b]" % repeated(b"1"), text)
    part = b'--b\r\nContent-Disposition: form-data; name="n"\r\n\r\nx\r\n'
    parts, form = part * (SIZE // len(part)) + b"--b--\r\n", "Content-Type: multipart/form-data; boundary=b"
    yield by_http(f"{path}: a form of many parts", "inference", path, parts, form)
    path = "/v1/models/echo:explain"
    yield by_http(
        "V1 explain: objects", "inference", path, b'{"instances":[%b]}' % repeated(b'{"a":1}'), text
    )
    # Few enough to be computed.
    some = b'{"instances":[%b]}' % repeated(b'"%b"' % (b"t" * 100_000))
    yield by_http("V1 explain: long texts", "inference", path, some, text)
    one = b'{"instances":[{%b}]}' % many_keys()
    yield by_http("V1 explain: one instance of many keys", "inference", path, one, text)


def changing_bodies() -> Iterator[Heavy]:
    """Routes that take parameters in their queries, and get a body."""
    keys, text = b"{%b}" % many_keys(), "Content-Type: application/json"
    for method, path in (
        ("PUT", "/models/echo?min_worker=1"),
        ("PUT", "/models/echo/1.0/set-default"),
        ("DELETE", "/models/none"),
        ("GET", "/models/echo"),
    ):
        name = f"{method} {path.partition('?')[0]}: keys"
        yield by_http(name, "management", path, keys, text, method=method)
    fields = b"&".join([b"min_worker=1"] * (SIZE // 13))
    kind = "Content-Type: application/x-www-form-urlencoded"
    yield by_http("PUT /models/echo: fields", "management", "/models/echo", fields, kind, method="PUT")
    path = "/models/echo?" + "&".join(f"p{number}=1" for number in range(7000))
    yield by_http("PUT /models/echo: a long query", "management", path, b"", method="PUT")


def with_tokens(tokens: dict[str, str]) -> Iterator[Heavy]:
    """Routes that need a token, with and without it, and tokens that are none."""
    text = "Content-Type: application/json"
    allowed = {scope: f"Authorization: Bearer {token}" for scope, token in tokens.items()}
    keys = b"{%b}" % many_keys()
    for listener, path, body, scope in (
        ("inference", "/predictions/echo", b"b" * SIZE, "inference"),
        ("inference", "/v1/models/echo:predict", keys, "inference"),
        ("inference", "/invocations", b"&".join([b"k=1"] * (SIZE // 4)), "inference"),
        ("management", "/models", keys, "management"),
        ("inference", "/v2/repository/index", keys, "management"),
        ("management", "/token?type=none", keys, "API"),
    ):
        yield by_http(f"{listener} {path}: no token", listener, path, body, text)
        yield by_http(f"{listener} {path}: its token", listener, path, body, text, allowed[scope])
    yield by_http("another's token", "inference", "/predictions/echo", b"b" * SIZE, allowed["management"])
    long = f"Authorization: Bearer {'t' * 60_000}"
    yield by_http("a long token", "inference", "/predictions/echo", b"", long)
    yield by_http("many tokens", "inference", "/predictions/echo", b"", *["Authorization: Bearer t"] * 2_400)
    path = f"/token?type={'t' * 60_000}"
    yield by_http("a long kind of token", "management", path, b"", allowed["API"], method="GET")
    registration = manage("RegisterModel", url="." * MOST_PARAMETERS)
    for side, service, method, message in (
        ("inference", f"{INFERENCE}InferenceAPIsService", "Predictions", predict("echo", data=b"g" * SIZE)),
        ("management", f"{MANAGEMENT}ManagementAPIsService", "RegisterModel", registration),
    ):
        for name, token in (("a wrong token", "t" * 4000), ("its token", tokens[side])):
            metadata = (("authorization", f"Bearer {token}"),)
            yield by_grpc(f"gRPC {method}: {name}", side, service, method, message, metadata)


def management_bodies() -> Iterator[Heavy]:
    """Registrations, the repository, everything else that takes a body."""
    text = "Content-Type: application/json"
    for listener, path in (
        ("management", "/models"),
        ("management", "/v2/repository/index"),
        ("inference", "/v2/repository/index"),
        ("management", "/v2/repository/models/echo/load"),
        ("inference", "/v2/systemsharedmemory/region/r/register"),
        ("inference", "/v2/logging"),
        ("inference", "/v2/models/echo/trace/setting"),
    ):
        yield by_http(f"{listener} {path}: keys", listener, path, b"{%b}" % many_keys(), text)
        if not path.endswith("load"):
            # The body does not matter for what is loaded.
            most = b"{%b}" % many_keys(MOST_PARAMETERS)
            yield by_http(f"{listener} {path}: all keys that are allowed", listener, path, most, text)
        yield by_http(f"{listener} {path}: a list", listener, path, b'{"x":[%b]}' % repeated(b"1"), text)
        yield by_http(f"{listener} {path}: nesting", listener, path, b'{"x":' + b"[" * SIZE, text)
    for name, url in (("dots", b"." * (SIZE - 20)), ("http", b"http://" + b"a." * (SIZE // 2 - 20))):
        yield by_http(f"/models: a URL of {name}", "management", "/models", b'{"url":"%b"}' % url, text)
        short = url[:60_000].decode()
        yield by_http(f"/models: a query of {name}", "management", f"/models?url={short}", b"")
    name = b'{"url":"echo.mar","model_name":"%b"}' % (b"n" * (SIZE - 60))
    yield by_http("/models: a long name", "management", "/models", name, text)


def build_archives(store: Path) -> None:
    """Archives that take long to read: by their configuration, their code, their manifest, their entries."""
    handler = "def handle(data, context):\n    return [b'ok'] * len(data or [])\n"
    merged = "a0: &a0 {k: 1}\n" + "".join(
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 7)
    )
    contents = {
        "merge": {"model-config.yaml": merged},
        "keys": {"model-config.yaml": "".join(f"key{number}: 1\n" for number in range(100_000))},
        "nested": {"model-config.yaml": "a: " + "[" * 50_000},
        "code": {"handler.py": handler + "x = [\n" + "    1 + 2,\n" * 90_000 + "]\n"},
        "entries": {f"file{number}": "x" for number in range(20_000)},
    }
    for name, files in contents.items():
        model = {"modelName": name, "handler": "handler.py", "modelVersion": "1.0"}
        if "model-config.yaml" in files:
            model["configFile"] = "model-config.yaml"
        manifest = {"createdOn": "01/01/2026 00:00:00", "runtime": "python", "model": model}
        with zipfile.ZipFile(store / f"heavy-{name}.mar", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            for path, content in {"handler.py": handler, **files}.items():
                archive.writestr(path, content)


def archives() -> Iterator[Heavy]:
    """Each is registered, whatever comes of it."""
    for name in ("merge", "keys", "nested", "code", "entries"):

        def send(server: Server, name: str = name) -> str:
            request = post(
                f"/models?url=heavy-{name}.mar&model_name=heavy&initial_workers=1&synchronous=true", b""
            )
            outcome = of_bytes(name, "management", request).send(server)
            server.management.delete("/models/heavy", timeout=ANSWER_SECONDS)
            return outcome

        yield Heavy(f"an archive: {name}", send)


def floods() -> Iterator[Heavy]:
    """Thousands of frames that bring nothing, on gRPC's port."""
    for kind in frames.FLOODS:

        def send(server: Server, kind: str = kind) -> str:
            return "cut off" if frames.flood(frames.port_of(server), kind) else "no answer"

        yield Heavy(f"gRPC: a flood of {kind}", send)


WORKFLOW = """
def same(data, context):
    return data and [bytes(row.get("body") or row.get("data") or b"") for row in data]


def left(data, context):
    return same(data, context)


def right(data, context):
    return data and ["r" * 3_000_000 for _ in data]
"""
# Answers something else each time, as long as its body.
CHANGING = """
import itertools, json

numbers = itertools.count()


def handle(data, context):
    return data and [json.dumps([next(numbers) for _ in range(400_000)]) for _ in data]
"""
# Specification and functions of workflows that take long to read; none can be registered.
WORKFLOWS: dict[str, tuple[str, str]] = {
    "keys": ("".join(f"key{n}: 1\n" for n in range(30_000)), ""),
    "nesting": ("dag: " + "[" * 500_000, ""),
    "nodes": ("dag:\n" + "".join(f"  n{n}: [n{n + 1}]\n" for n in range(1_000)), ""),
    "edges": (
        "dag:\n"
        + "".join(f"  n{n}: [{', '.join(f'n{m}' for m in range(n + 1, 200))}]\n" for n in range(200)),
        "",
    ),
    "functions": (
        "dag:\n  f0: [missing]\n",
        "".join(f"def f{n}(data, context): pass\n" for n in range(50_000)),
    ),
}


def prepare_extensions(server: Server) -> None:
    """Workflows of one end and of two, a model with a shadow, and workflows that take long to read."""
    store = Path(str(server.settings["model_store"]))
    (store.parent / "functions.py").write_text(WORKFLOW)
    for name, dag in (("line", "same: [left]"), ("fork", "same: [left, right]")):
        spec = store.parent / f"{name}.yaml"
        spec.write_text(f"models: {{timeout-ms: 60000}}\ndag:\n  {dag}\n")
        build_workflow(WorkflowConfig(name, spec, store.parent / "functions.py", export_path=store))
        answer = server.management.post(f"/workflows?url={name}.war", timeout=ANSWER_SECONDS)
        assert answer.status_code == 200, answer.text
    for name, (specification, functions) in WORKFLOWS.items():
        fields = {"workflowName": name, "specFile": "spec.yaml", "handler": "functions.py"}
        with zipfile.ZipFile(store / f"heavy-{name}.war", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("WAR-INF/MANIFEST.json", json.dumps({"workflow": fields}))
            archive.writestr("spec.yaml", specification)
            archive.writestr("functions.py", functions)
    (store.parent / "changing.py").write_text(CHANGING)
    for version in ("1.0", "2.0"):
        config = ArchiveConfig(
            "changing", str(store.parent / "changing.py"), version, export_path=store.parent
        )
        build_archive(config).rename(store / f"changing-{version}.mar")
        server.registered(f"changing-{version}.mar", response_timeout=120)
    plan = {"shadow": {"2.0": {"percent": 100, "compare": "numeric"}}}
    assert server.management.put("/models/changing/traffic", json=plan).status_code == 200


def extension_bodies() -> Iterator[Heavy]:
    """Workflows, traffic, recordings, the console, and SageMaker's routes."""
    numbers, text = b"[%b]" % repeated(b"1"), "Content-Type: application/json"
    form = "Content-Type: application/x-www-form-urlencoded"
    squeezed, query = gzip.compress(bytes(SIZE)), "a&" * 30_000
    for name, path, body, *lines in (
        ("bytes", "/wfpredict/line", bytes(SIZE)),
        ("gzip", "/wfpredict/line", squeezed, "Content-Encoding: gzip"),
        ("JSON", "/wfpredict/line", numbers, text),
        ("two ends", "/wfpredict/fork", numbers[: SIZE // 2]),
        ("two ends of text", "/wfpredict/fork", b'"\\' * 1_500_000),
        ("a query", f"/wfpredict/line?{query}", b""),
        ("no workflow", "/wfpredict/" + "%41" * 20_000, bytes(SIZE)),
        ("bytes", "/models/echo/invoke", bytes(SIZE)),
        ("a form", "/models/echo/invoke", b"a=" + b"%41" * (SIZE // 3 - 10), form),
        ("a query", f"/models/echo/invoke?{query}", b""),
        ("a shadow", "/predictions/changing", bytes(SIZE)),
        ("V2 rows of BYTES", "/v2/models/echo/explain", v2_rows(b"BYTES", b'"abc"'), text),
        ("V2 numbers", "/v2/models/echo/explain", v2_rows(b"FP32", b"0.12345"), text),
    ):
        yield by_http(f"{path[:30]}: {name}", "inference", path, body, *map(str, lines))
    traffic = "/models/echo/traffic"
    plans: dict[str, object] = {
        "many versions": {f"{n}.0": 0 for n in range(7_000)},
        "a long header": {"sticky": "a" * 100_000},
        "many shadows": {"shadow": {f"{n}.0": {"percent": 1} for n in range(3_500)}},
        "many keys": {f"a{n}": 1 for n in range(7_000)},
    }
    bodies = {name: json.dumps(plan).encode() for name, plan in plans.items()} | {
        "a large body": b'{"weights":' + b"[" * SIZE + b"}",
        "nesting": b'{"weights":' + b"[" * 100_000 + b"}",
        "a long number": b'{"weights":' + b"9" * 100_000 + b"}",
        "a long fraction": b'{"1.0":0.' + b"9" * 100_000 + b"}",
    }
    for name, body in bodies.items():
        yield by_http(f"{traffic}: {name}", "management", traffic, body, text, method="PUT")
        yield by_http(f"/workflows: {name}", "management", "/workflows", body, text)
    for name, method, path, body in (
        ("a long URL", "POST", "/workflows?url=" + "." * 60_000, b""),
        ("a body that nobody reads", "POST", "/workflows?url=no.war", bytes(SIZE)),
        ("a query", "GET", f"/workflows?{query}", b""),
        ("a query", "GET", f"/models/echo/shadow?{query}", b""),
        ("many models", "POST", "/recording?" + "model=a&" * 7_000, b""),
        ("long numbers", "POST", "/recording?requests=" + "9" * 8_000, b""),
        ("bytes", "POST", "/console/try/predictions/echo", bytes(SIZE)),
        ("V2", "POST", "/console/try/v2/models/echo/infer", v2_rows(b"BYTES", b'"abc"')),
        ("a path", "POST", "/console/try/predictions/" + "%41" * 20_000, b""),
        ("a large body", "POST", "/console/estimate", bytes(SIZE)),
        ("nesting", "POST", "/console/estimate", b'{"model":' + b"[" * 16_000),
    ):
        yield by_http(f"{method} {path[:30]}: {name}", "management", path, body, method=method)
    for name in WORKFLOWS:
        yield by_http(f"a workflow: {name}", "management", f"/workflows?url=heavy-{name}.war", b"")
    yield Heavy("a recording of a shadow", record)


def v2_rows(datatype: bytes, unit: bytes) -> bytes:
    """A V2 request of as many rows as fit."""
    data = repeated(unit)
    tensor = b'{"name":"x","datatype":"%b","shape":[%d],"data":[%b]}' % (datatype, data.count(unit), data)
    return b'{"inputs":[%b]}' % tensor


def record(server: Server) -> str:
    """A request is recorded while a shadow answers it differently."""
    with server.management.stream("POST", "/recording?requests=1", timeout=ANSWER_SECONDS) as frames_:
        answer = server.predict("changing", bytes(SIZE), timeout=ANSWER_SECONDS)
        whole = len(frames_.read()) > SIZE + len(answer.content) > SIZE
    return str(answer.status_code) if whole else "no answer is recorded"


def grpc_messages() -> Iterator[Heavy]:
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"x"]}}
    rows = SIZE // 6
    many = {**tensor, "shape": [rows], "contents": {"bytes_contents": [b"abc"] * rows}}
    raw = struct.pack("<I", 1) + b"x"
    count = SIZE // len(raw)
    bare = {"name": "x", "datatype": "BYTES", "shape": [count]}
    infer = "inference.GRPCInferenceService", "ModelInfer"
    predictions = f"{INFERENCE}InferenceAPIsService", "Predictions"
    for name, (service, method), message in (
        ("gRPC: bytes", predictions, predict("echo", data=b"g" * SIZE)),
        ("gRPC: inputs", infer, oip("ModelInferRequest", model_name="echo", inputs=[tensor] * (SIZE // 40))),
        (f"gRPC: {rows:,} BYTES", infer, oip("ModelInferRequest", model_name="echo", inputs=[many])),
        (
            f"gRPC: {count:,} raw BYTES",
            infer,
            oip("ModelInferRequest", model_name="echo", inputs=[bare], raw_input_contents=[raw * count]),
        ),
    ):
        yield by_grpc(name, "inference", service, method, message)


def grpc_management() -> Iterator[Heavy]:
    """Messages of the management service, and of the repository's part of the Open Inference Protocol."""
    service = f"{MANAGEMENT}ManagementAPIsService"
    for size, which in ((SIZE, "too large"), (MOST_PARAMETERS, "as large as may be")):
        long = "n" * size
        for method, name, fields in (
            ("RegisterModel", "a URL of dots", {"url": "." * size}),
            ("RegisterModel", "a URL of http", {"url": "http://" + "a." * (size // 2 - 4)}),
            ("RegisterModel", "a long name", {"url": "echo.mar", "model_name": long}),
            ("RegisterModel", "a long handler", {"url": "echo.mar", "model_name": "b", "handler": long}),
            ("DescribeModel", "a long version", {"model_name": "echo", "model_version": long}),
            ("ScaleWorker", "a long name", {"model_name": long, "min_worker": 1}),
            ("SetDefault", "a long version", {"model_name": "echo", "model_version": long}),
            ("UnregisterModel", "a name of accents", {"model_name": "\xe9" * (size // 2)}),
        ):
            if size == SIZE and method != "RegisterModel":
                # They are refused before anything is read.
                continue
            title = f"gRPC {method}: {name}, {which}"
            yield by_grpc(title, "management", service, method, manage(method, **fields))
    # A field that the message does not have, again and again.
    unknown = b"\xba\x06\x01x" * (MOST_PARAMETERS // 4)
    yield by_grpc("gRPC ListModels: unknown fields", "management", service, "ListModels", unknown)
    keys = {f"k{number}": {"bool_param": True} for number in range(SIZE // 60)}
    load = oip("RepositoryModelLoadRequest", model_name="echo", parameters=keys)
    service = "inference.GRPCInferenceService"
    yield by_grpc("gRPC RepositoryModelLoad: parameters", "inference", service, "RepositoryModelLoad", load)


def by_grpc(
    name: str, side: str, service: str, method: str, message: Any, metadata: tuple[tuple[str, str], ...] = ()
) -> Heavy:
    """A call on a connection of its own; how it ends is the answer."""
    text = message if isinstance(message, bytes) else message.SerializeToString()

    def send(server: Server) -> str:
        with channel(server, side) as to:
            try:
                getattr(stub(to, service), method)(text, timeout=ANSWER_SECONDS, metadata=metadata)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    return Heavy(name, send)
