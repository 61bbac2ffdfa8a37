import logging
import re
from unittest.mock import Mock

import pytest

from modelserver.engine.telemetry.access import FLUSH_ENTRIES, FLUSH_SECONDS, AccessLog
from modelserver.engine.telemetry.metrics import probe_path

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,625"


class FakeLoop:
    """A loop of timers that fire when told."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, callback):
        self.timers.append(Mock(delay=delay, fire=callback))
        return self.timers[-1]


@pytest.fixture
def records():
    return []


@pytest.fixture
def logger(records, monkeypatch):
    made, handler = logging.getLogger("test_access"), logging.Handler()
    monkeypatch.setattr(handler, "emit", records.append)
    made.setLevel(logging.INFO)
    monkeypatch.setattr(made, "propagate", False)
    monkeypatch.setattr(made, "handlers", [handler])
    return made


@pytest.fixture
def loop():
    return FakeLoop()


def access_log(logger, loop, *, stamped=True):
    log = AccessLog(stamped=stamped, logger=logger, clock=lambda: 1717098363.625)
    log.start(loop)
    return log


def message(logger, loop, records, *, target="/predictions/m", method="POST"):
    """The line of one request, without its time."""
    log = access_log(logger, loop)
    log.log("127.0.0.1:5000", method, target, "1.1", 200, 0.0129)
    log.close()
    return records[0].getMessage().split(" - ", 1)[1]


def test_line_has_time_client_request_and_status(logger, loop, records):
    """The query stays, and milliseconds are whole (reference 15.5); a gRPC call is an HTTP/2.0 line."""
    log = access_log(logger, loop)
    log.log("127.0.0.1:5000", "POST", "/models?url=a.mar", "1.1", 200, 0.0129)
    log.log("127.0.0.1:5000", "gRPC", "pkg.Service/Ping", "2.0", 0, 0.001)
    log.flush()
    rest, grpc = records[0].getMessage().splitlines()

    assert re.fullmatch(rf'{STAMP} - /127\.0\.0\.1:5000 "POST /models\?url=a\.mar HTTP/1\.1" 200 12', rest)
    assert grpc.endswith('"gRPC pkg.Service/Ping HTTP/2.0" 0 1')


def test_successful_health_checks_are_left_out(logger, loop, records):
    log = AccessLog(logger=logger, probes=False)
    log.start(loop)
    for path, status in (("/ping", 200), ("/v2/health/ready", 200), ("/v2/health/ready", 503), ("/pin", 200)):
        log.log("c", "GET", path, "1.1", status, 0)
    for code in (0, 5):
        log.log("c", "gRPC", "grpc.health.v1.Health/Check", "2.0", code, 0)
    log.close()

    (record,) = records
    assert re.findall(r'"(.*) HTTP/..." (\d+)', record.getMessage()) == [
        ("GET /v2/health/ready", "503"),
        ("GET /pin", "200"),
        ("gRPC grpc.health.v1.Health/Check", "5"),
    ]


@pytest.mark.parametrize(("stamped", "ids"), [(True, [["a", "", "b"]]), (False, [["a"], [""], ["b"]])])
def test_records_have_the_ids_of_all_requests(logger, loop, records, stamped, ids):
    """The lines name those that failed or are traced."""
    log = access_log(logger, loop, stamped=stamped)
    for request_id in ("a", "", "b"):
        log.log("c", "GET", "/models", "1.1", 200, 0, request_id)
    log.close()

    assert [record.request_ids for record in records] == ids


def test_lines_are_written_together_by_timer(logger, loop, records):
    """Requests arm one timer; when it fires all lines go in one write. An idle server has none (F29)."""
    log = access_log(logger, loop)
    assert loop.timers == []
    for _ in range(3):
        log.log("c", "GET", "/ping", "1.1", 200, 0)

    assert [timer.delay for timer in loop.timers] == [FLUSH_SECONDS]
    assert records == []
    loop.timers[0].fire()
    assert len(records) == 1
    assert records[0].getMessage().count("\n") == 2
    assert len(loop.timers) == 1


def test_many_lines_do_not_wait_for_the_timer(logger, loop, records):
    """At 512 lines they are written at once and the timer is taken back."""
    log = access_log(logger, loop)
    for _ in range(FLUSH_ENTRIES + 1):
        log.log("c", "GET", "/ping", "1.1", 200, 0)

    assert len(records) == 1
    assert [timer.cancel.called for timer in loop.timers] == [True, False]


def test_no_line_is_lost_before_the_start_or_at_the_end(logger, loop, records):
    log = AccessLog(logger=logger)
    log.log("c", "GET", "/early", "1.1", 200, 0)
    log.start(loop)
    loop.timers[0].fire()
    log.log("c", "GET", "/a", "1.1", 200, 0)
    log.close()
    log.log("c", "GET", "/late", "1.1", 200, 0)

    assert [record.getMessage().split()[4] for record in records] == ["/early", "/a", "/late"]
    assert loop.timers[1].cancel.called


def test_silenced_logger_writes_nothing(logger, loop, records):
    logger.setLevel(logging.WARNING)
    log = access_log(logger, loop)
    log.log("c", "GET", "/a", "1.1", 200, 0)
    log.close()

    assert records == []


def test_unstamped_lines_are_records_of_their_own(logger, loop, records):
    log = access_log(logger, loop, stamped=False)
    log.log("c:1", "GET", "/a", "1.1", 200, 0)
    log.log("c:1", "GET", "/b", "1.1", 200, 0)
    log.close()

    lines = [record.getMessage() for record in records]
    assert lines == ['/c:1 "GET /a HTTP/1.1" 200 0', '/c:1 "GET /b HTTP/1.1" 200 0']
    assert {record.created for record in records} == {1717098363.625}


def test_line_breaks_and_quotes_are_escaped(logger, loop, records):
    """Line breaks and quotes in a request cannot forge a line or a field (F13)."""
    line = message(logger, loop, records, target='/a" 200 0\r\n/1.2.3.4 "GET /b', method="GE\nT")
    assert line == ('/127.0.0.1:5000 "GE\\nT /a%22 200 0\\r\\n/1.2.3.4 %22GET /b HTTP/1.1" 200 12')


def test_credentials_are_masked_and_long_targets_cut(logger, loop, records):
    line = message(logger, loop, records, target="/models?url=https://me:secret@h/m.mar&batch_size=8")
    assert '"POST /models?url=https://***@h/m.mar&batch_size=8 HTTP/1.1"' in line

    log = access_log(logger, loop)
    log.log("c", "POST", f"/m?x={'x' * 4070}&url=https://me:{'secret' * 99}@h/m", "1.1", 200, 0)
    log.close()
    assert "secret" not in records[1].getMessage()

    log = access_log(logger, loop)
    log.log("c", "POST", "/" + "x" * 100_000, "1.1", 200, 0)
    log.close()
    line = records[2].getMessage()

    assert len(line) < 4300
    assert "more characters" in line


def test_failures_are_named(logger, loop, records):
    """Lines of answers of 400 and above end with the request's id; others, and TorchServe's, do not."""
    for names_failures in (True, False):
        log = AccessLog(logger=logger, names_failures=names_failures)
        log.start(loop)
        for status in (200, 503):
            log.log("c", "POST", "/predictions/m", "1.1", status, 0.002, "id-7")
        log.close()
    ends = [line.rpartition('HTTP/1.1" ')[2] for each in records for line in each.getMessage().splitlines()]

    assert ends == ["200 2", "503 2 id-7", "200 2", "503 2"]


def test_only_what_may_be_a_check_is_counted_with_its_target(logger):
    counted = []
    on_response = AccessLog(logger=logger).counting(lambda *values: counted.append(values))
    for method in ("POST", "GET", "HEAD"):
        on_response("c", method, "/ping", "1.1", 200, 0.0, "")

    assert counted == [(200,), (200, "/ping"), (200, "/ping")]


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/ping", "/ping"),
        ("/livez/", "/livez"),
        ("/readyz?verbose", "/readyz"),
        ("/v2/health/live", "/v2/health/live"),
        ("/v2/health/ready", "/v2/health/ready"),
        ("/v1/models/m", "/v1/models/{name}"),
        ("/v2/models/m/ready", "/v2/models/{name}/ready"),
        ("/v2/models/m/versions/1.0/ready", "/v2/models/{name}/versions/{version}/ready"),
        ("grpc.health.v1.Health/Check", "grpc.health.v1.Health/Check"),
        ("inference.GRPCInferenceService/ServerReady", "inference.GRPCInferenceService/ServerReady"),
        (
            "org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping",
            "org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping",
        ),
        # Predictions, also those of models with such names, metadata, and scrapes.
        ("/", ""),
        ("", ""),
        ("/predictions/ping", ""),
        ("/predictions/ready", ""),
        ("/predictions/v2/models/m/ready", ""),
        ("/v1/models", ""),
        ("/v1/models/m:predict", ""),
        ("/v2/models/m", ""),
        ("/metrics", ""),
        ("inference.GRPCInferenceService/ModelInfer", ""),
    ],
)
def test_health_checks_have_a_path_without_names(target, path):
    """Otherwise clients could create series by requesting names."""
    assert probe_path(target) == path
