import asyncio
import logging
import ssl
import sys
import time
from pathlib import Path

import pytest
from tests.ext.payloads.sinks import sink_server, wait_for

from modelserver.errors import ConfigError
from modelserver.ext.payloads.event import REQUEST, Event, Origin
from modelserver.ext.payloads.log import PayloadLimits, PayloadLog
from modelserver.ext.payloads.sink import Sink
from modelserver.models.settings.settings import Settings

sys.path.append(str(Path(__file__).parents[2] / "surface" / "tls"))


class Clock:
    """Seconds, by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def log_to(url, *, timeout=5.0, clock=None, **changes):
    limits = PayloadLimits(**{"connections": 1, **changes})
    log = PayloadLog(Sink(url, timeout), Origin("test"), "all", limits, clock or Clock())
    log.start()
    return log


def event(number=0, body=b"{}"):
    return Event(REQUEST, str(number), 0.0, "application/json", body)


def loss_lines(caplog):
    """The warnings; whether other lines are logged, too, is for whoever runs the tests to say."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def settled(log):
    """The counts when nothing waits; those that are zero left out."""
    wait_for(lambda: log.waiting == 0, "the queue is empty")
    return {name: count for name, count in log.counts().items() if count}


async def test_events_above_the_limits_are_dropped(sink, caplog):
    sink.gate.clear()
    log = log_to(sink.url, timeout=60.0, events=3, nbytes=100, body=80)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        log.put(event(0, bytes(81)))
        log.put(event(1, bytes(80)))
        log.put(event(2, bytes(21)))
        for number in range(3, 6):
            log.put(event(number))

    assert time.monotonic() - started < 30.0
    assert log.waiting == 3
    sink.gate.set()
    assert settled(log) == {"sent": 3, "too_large": 1, "queue_full": 2}
    assert [e.heads["ce-id"] for e in sink.wait(3)] == ["1", "3", "4"]
    url = sink.url.partition("?")[0]
    assert loss_lines(caplog) == [
        f"Payload log: events for {url} are lost: 1 were larger than payload_log_max_body"
    ]
    await log.close(5.0)


async def test_failing_sink_is_logged_once_a_minute(sink, caplog):
    """A response other than 2xx loses its event and no other; it is logged at most once a minute."""
    clock = Clock()
    sink.status = 500
    log = log_to(sink.url, clock=clock)
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            log.put(event(number))
        assert settled(log) == {"failed": 4}
        assert len(loss_lines(caplog)) == 1
        clock.now = 60.0
        log.put(event())
        assert settled(log) == {"failed": 5}
        assert loss_lines(caplog)[1].endswith("are lost: 4 could not be sent (it answered 500)")
        sink.status = 200
        log.put(event())
        assert settled(log) == {"failed": 5, "sent": 1}
        await log.close(5.0)

    assert len(loss_lines(caplog)) == 2
    assert "key=1" not in caplog.text


async def test_sink_that_is_down_or_slow_delays_nobody(sink):
    log = log_to("http://127.0.0.1:9/")
    log.put(event())
    assert settled(log) == {"failed": 1}
    await log.close(5.0)

    sink.gate.clear()
    log = log_to(sink.url, timeout=0.1)
    log.put(event())

    assert settled(log) == {"failed": 1}
    assert len(sink.wait(1)) == 1
    await log.close(5.0)


async def test_what_waits_is_sent_in_the_time_that_is_left(sink, caplog):
    """What the sink does not take in that time is dropped, counted and said."""
    log = log_to(sink.url, connections=2)
    for number in range(20):
        log.put(event(number))
    await log.close(10.0)

    assert {name: count for name, count in log.counts().items() if count} == {"sent": 20}
    assert loss_lines(caplog) == []

    sink.gate.clear()
    log = log_to(sink.url, connections=2)
    for number in range(20):
        log.put(event(number))
    wait_for(lambda: len(sink.events) == 22, "both threads are busy")
    closing = asyncio.create_task(log.close(0.2))
    # The loop is free meanwhile.
    await asyncio.sleep(0)
    started = time.monotonic()
    await closing

    assert time.monotonic() - started < 5.0
    assert log.counts()["shutdown"] == 20
    assert loss_lines(caplog)[-1].endswith("20 were unsent when the server stopped")


def test_settings_describe_the_log(tmp_path):
    log = PayloadLog.of(
        Settings(payload_log_url="http://sink:1/x?y=z", payload_log_queue_size=7, payload_log_mode="request")
    )
    assert (log.limits.events, log.requests, log.responses) == (7, True, False)
    assert Sink.of(Settings(payload_log_url="https://sink")).tls.check_hostname
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"payload_log_ca_file=.*a PEM file of certificates is needed"):
        PayloadLog.of(Settings(payload_log_url="https://sink", payload_log_ca_file=wrong))


async def test_events_are_sent_over_https(tmp_path):
    certificates = pytest.importorskip("certificates", reason="cryptography is not installed")
    authority = certificates.Authority(tmp_path)
    key, chain = authority.issue("sink")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, key)
    with sink_server(tls) as sink:
        for values, outcome in (
            ({"payload_log_ca_file": authority.file}, "sent"),
            ({"payload_log_skip_verify": True}, "sent"),
            ({}, "failed"),
        ):
            log = PayloadLog.of(Settings(payload_log_url=sink.url, **values))
            log.start()
            log.put(event())
            assert settled(log) == {outcome: 1}
            await log.close(5.0)


@pytest.mark.parametrize(
    ("configured", "reason"),
    [
        *(
            ({"url": url}, "payload_log_url: http://host[:port][/path], or https, is needed")
            for url in ("sink:8080", "http://", "http://a:b/", "http://a/b c")
        ),
        ({"url": "s3://bucket"}, "events are not written to s3://"),
        ({"url": "http://me:secret@a/"}, "user and password are not allowed"),
        ({"headers": "x y"}, "payload_log_headers=x y: names of headers, separated by commas"),
        ({"annotations": "a"}, "payload_log_annotations=a: name=value items, separated by commas"),
        *(
            ({"headers": f"X-Ok,{name}"}, f"{name}: headers that hold credentials are never sent")
            for name in ("Authorization", "COOKIE", "x-api-key", "X-Auth-Token", "proxy-authorization")
        ),
    ],
)
def test_unusable_values_stop_the_start(configured, reason):
    """What cannot be meant, or must not be sent, stops the start with the key and the reason."""
    settings = {f"payload_log_{name}": value for name, value in ({"url": "http://sink"} | configured).items()}
    with pytest.raises(ConfigError) as error:
        PayloadLog.of(Settings(**settings))

    assert reason in str(error.value)
    assert "secret" not in str(error.value)
