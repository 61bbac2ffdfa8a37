"""What a scrape and the log files of a running server hold, to the letter (reference 15)."""

import re

import psutil
import pytest
from tests.e2e.serving import Home, Server, serving, wait_until

parser = pytest.importorskip("prometheus_client.parser")

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
ACCESS = re.compile(
    rf'{STAMP} - /127\.0\.0\.1:\d+ "[A-Z]+ [^ "]+ HTTP/1\.[01]" (?:[123]\d\d \d+|[45]\d\d \d+ [!-~]+)'
)
RECORD = re.compile(rf"{STAMP} \[(DEBUG|INFO |WARN |ERROR|FATAL)\] \S+ \S+ - \S.*")
MODEL_RECORD = re.compile(rf"{STAMP} \[(INFO |WARN )\] W-\d+-\w+_1\.0-std(out|err) MODEL_LOG - .*")

HOST = ("Level", "Hostname")
MODEL = ("model_name", "model_version", "hostname")
# Reference 15.3: kind and labels in their order.
TORCHSERVE = {
    **dict.fromkeys(("Requests2XX", "Requests4XX", "Requests5XX"), ("counter", HOST)),
    "ts_inference_requests_total": ("counter", MODEL),
    "ts_inference_latency_microseconds": ("counter", MODEL),
    "ts_queue_latency_microseconds": ("counter", MODEL),
    **dict.fromkeys(("QueueTime", "WorkerThreadTime"), ("gauge", HOST)),
    "WorkerLoadTime": ("gauge", ("WorkerName", *HOST)),
    **dict.fromkeys(("CPUUtilization", "MemoryUtilization", "DiskUtilization"), ("gauge", HOST)),
    **dict.fromkeys(("MemoryUsed", "MemoryAvailable", "DiskUsage", "DiskAvailable"), ("gauge", HOST)),
    **dict.fromkeys(("HandlerTime", "PredictionTime"), ("gauge", ("ModelName", *HOST))),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    with serving(Server(Home(tmp_path_factory.mktemp("observed")), model_store)) as made:
        made.registered("echo.mar").registered("obey.mar")
        assert made.predict("echo", b"x").status_code == 200
        assert made.inference.post("/predictions/echo/1.0", content=b"x").status_code == 200
        yield made


def scraped(server):
    """The samples of a scrape by name, read by the parser of Prometheus' own client."""
    result = {}
    text = server.metrics.get("/metrics").text
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser appends this to the names of counters, as in the newer format.
            exact = family.type != "counter" or f"# TYPE {sample.name} " in text
            result.setdefault(sample.name if exact else sample.name.removesuffix("_total"), []).append(sample)
    return result


def test_prometheus_parses_the_metrics(server):
    """Prometheus' own parser reads every line; names, kinds and labels are TorchServe's, in their order."""
    wait_until(lambda: "CPUUtilization{" in server.metrics.get("/metrics").text, "the host was read")
    answer = server.metrics.get("/metrics")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    samples = scraped(server)

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert sum(map(len, samples.values())) == len(lines)
    for name, (kind, labels) in TORCHSERVE.items():
        assert f"# TYPE {name} {kind}\n" in answer.text, name
        assert samples[name], name
        inside = ",".join(rf'{label}="[^"]+"' for label in labels)
        ours = [line for line in lines if line.startswith(f"{name}{{")]
        assert all(re.fullmatch(rf"{name}\{{{inside}\}} \d+\.\d+(e[+-]?\d+)?", line) for line in ours), ours
    assert not [name for name in samples if name.endswith("_created")]
    totals = {name for name in samples if name.endswith("_total") and not name.startswith("modelserver_")}
    assert totals == {"ts_inference_requests_total"}
    counted = [s for s in samples["ts_inference_requests_total"] if s.labels["model_name"] == "echo"]
    versions = {sample.labels["model_version"]: sample.value for sample in counted}
    assert (versions["default"], versions["1.0"]) == (1, 1)
    workers = [sample.labels["WorkerName"] for sample in samples["WorkerLoadTime"]]
    assert all(re.fullmatch(r"W-\d+-(echo|obey)_1\.0", name) for name in workers)


def test_access_log_has_a_line_per_response(server):
    """Each response has one line, for any request, and no line has a payload or a header (F13)."""
    hostile = [
        "/predictions/echo?a=%0d%0a2024-01-01T00:00:00,000%20-%20forged",
        "/predictions/no%0Asuch%0Dmodel",
        '/predictions/"quoted"',
        "/predictions/" + "long" * 500,
        "/models?url=http://user:hidden@host/x.mar",
    ]
    server.predict("echo?marker", b"x")
    wait_until(lambda: after_marker(server) == [], "what came before is written")
    for number, path in enumerate(hostile):
        headers = {"X-Secret": "header-secret", "x-request-id": f"id-{number}", "User-Agent": "agent-secret"}
        server.inference.post(path, content=b"body-secret", headers=headers)
    wait_until(lambda: len(after_marker(server) or ()) >= len(hostile), "lines are written")

    assert len(after_marker(server) or ()) == len(hostile)
    assert [line for line in lines_of(server, "access_log.log") if not ACCESS.fullmatch(line)] == []
    logs = "".join(path.read_text() for path in (server.home.path / "logs").glob("*.log"))
    assert [word for word in ("body-secret", "header-secret", "agent-secret", "hidden") if word in logs] == []


def after_marker(server):
    """The access lines after that of the request with a marker, None as long as that is not there."""
    lines = lines_of(server, "access_log.log")
    places = [place for place, line in enumerate(lines) if "?marker " in line]
    return lines[places[-1] + 1 :] if places else None


def lines_of(server, name):
    return (server.home.path / "logs" / name).read_text().splitlines()


def test_logs_have_their_form(server):
    """Of ts_log each line, or it belongs to the one above. What handlers print is in model_log alone."""
    lines = lines_of(server, "ts_log.log")

    assert [line for line in lines if not RECORD.fullmatch(line) and not line.startswith("    ")] == []
    assert any("Model server started." in line for line in lines)

    assert server.predict("obey", {"do": "print", "megabytes": 1}).text == "printed"
    wait_until(lambda: "- eeee" in "".join(lines_of(server, "model_log.log")), "it is written")
    lines = lines_of(server, "model_log.log")
    (printed,) = [line for line in lines if line.endswith("MODEL_LOG - begin")]

    assert [line for line in lines if not MODEL_RECORD.fullmatch(line)] == []
    assert re.search(r" \[INFO \] W-\d+-obey_1\.0-stdout MODEL_LOG - begin$", printed)
    (error,) = [line for line in lines if line.endswith("e" * 1000)]
    assert re.search(r" \[WARN \] W-\d+-obey_1\.0-stderr MODEL_LOG - e+$", error)
    assert not [line for line in lines_of(server, "ts_log.log") if line.endswith("- begin")]


def test_disk_that_is_full(server):
    """Without room for logs and snapshots requests and changes are answered; then the files go on (F56)."""
    config = server.home.path / "logs" / "config"
    process = psutil.Process(server.pid)
    unlimited = process.rlimit(psutil.RLIMIT_FSIZE)
    before = sorted(config.iterdir())
    process.rlimit(psutil.RLIMIT_FSIZE, (1, unlimited[1]))
    try:
        answers = [server.predict("echo", b"x").status_code for _ in range(300)]
        change = server.management.put("/models/echo", params={"batch_size": "3"})
        refused = server.predict("none").status_code
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, unlimited)

    assert (answers, change.status_code, refused) == ([200] * 300, 200, 404)
    assert sorted(config.iterdir()) == before
    assert server.management.put("/models/echo", params={"batch_size": "1"}).status_code == 200
    assert len(list(config.iterdir())) == len(before) + 1
    server.predict("echo?there-is-room-again", b"x")
    wait_until(lambda: "there-is-room-again" in "".join(lines_of(server, "access_log.log")), "lines go on")
