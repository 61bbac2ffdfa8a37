"""``modelserver migrate`` compares TorchServe with a real modelserver, reports, and ends what it started."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.differential.torchserve import VARIABLE, missing
from tests.e2e.grpc_client import INFERENCE, channel, grpc_server, predict, stub
from tests.e2e.serving import PATIENCE, serving, wait_until
from tests.tools.migrate.grpc_player import playing_grpc
from tests.tools.migrate.sites import build_site, playing, recorded

from modelserver.tools.migrate.command import main

pytestmark = pytest.mark.slow

JSON = "application/json"
ENVIRONMENT = os.environ.get(VARIABLE)


def migrate(folder, torchserve, *flags):
    config = folder / "site" / "config.properties"
    status = main([str(config), "--torchserve", *torchserve, "--out", str(folder / "out"), *flags])
    return status, json.loads((folder / "out" / "report.json").read_text("utf-8"))


@contextlib.contextmanager
def played(folder, answers):
    """A TorchServe that gives these answers; its configuration is in ``site``. Gives the flags for it."""
    with playing_grpc(answers) as ports, playing(answers) as urls:
        build_site(folder / "site")
        others = ["--torchserve-management", urls["management"], "--torchserve-metrics", urls["metrics"]]
        for name, port in ports.items():
            flag = f"--torchserve-{name.removesuffix('_port').replace('_', '-')}"
            others += [flag, f"http://127.0.0.1:{port}"]
        yield [urls["inference"], *others]


def changed():
    """TorchServe's answers, but for one to a text."""
    answers, path = recorded(), "inference POST /predictions/plain "
    (wrong,) = (key for key in answers if key.startswith(path) and "fox" in key)
    return {**answers, wrong: answers[wrong].but(body=b"another answer")}


def servers():
    return [child for child in psutil.Process().children(recursive=True) if "modelserver" in child.cmdline()]


def test_every_difference_from_recorded_answers_has_its_reason(tmp_path):
    """Of the answers that TorchServe 0.12.0 gave for three models, over REST and gRPC, those to which
    modelserver gives others are explained, but for one that was changed: it is reported as unknown, with exit
    status 1. What the command started has ended, and the report names what the installation uses and what to
    change.
    """
    before = servers()
    with played(tmp_path, changed()) as torchserve:
        status, report = migrate(tmp_path, torchserve)

    assert [each["request"]["name"] for each in report["differences"] if each["verdict"] == "unknown"] == [
        "a text to /predictions/plain"
    ]
    assert status == 1
    assert report["missing"] == []
    assert {"phrase", "v1-instances", "exposed"} <= set(report["reasons"])
    assert {part["name"]: part["state"] for part in report["usage"]["keys"]}[
        "number_of_netty_threads"
    ] == "no effect"
    assert [part["name"] for part in report["usage"]["ts_names"]] == [
        "ts.context.Context",
        "ts.handler_utils.utils.send_intermediate_predict_response",
    ]
    assert report["advice"][0]["commands"][0].startswith("echo split_instances=false >> ")
    assert report["figures"]["load"] == []
    assert report["remarks"] == []
    assert report["figures"]["grpc_latency_ms"]["modelserver"] > 0
    assert report["figures"]["memory_bytes"]["modelserver"] > 1 << 20
    assert report["figures"]["start_seconds"]["torchserve"] is None
    assert servers() == before


FOX = b"The quick brown fox jumps over the lazy dog."
NUMBERS = b"[[1.0, 2.0]]"
ANOTHER = "TorchServe b'another answer', modelserver b'fine'"


@pytest.mark.parametrize("source", ["recording", "folder"])
def test_requests_of_ones_own_are_sent(tmp_path, source):
    """Recorded by `modelserver record`, or of files; a response that differs is reported with its request."""
    with played(tmp_path, changed()) as torchserve:
        make = a_recording if source == "recording" else a_folder
        requests = make(tmp_path)
        status, report = migrate(tmp_path, torchserve, "--prove", "--requests", str(requests))

    assert (status, report["verdict"]) == (1, "unknown")
    assert report["requests"]["asked"] == (4 if source == "recording" else 3)
    assert (report["figures"]["grpc_latency_ms"]["modelserver"] is not None) == (source == "recording")
    (result,) = (each for each in report["differences"] if each["verdict"] == "unknown")
    assert (result["request"]["path"], result["request"]["body"]) == ("/predictions/plain", FOX.decode())
    assert ANOTHER in " ".join(" ".join(result["what"]).split())
    assert report["figures"]["latency_ms"]["modelserver"] > 0


def test_explained_differences_end_well(tmp_path):
    """With exit status 0. Asked for, the load on both is measured, also of a TorchServe that only plays."""
    with played(tmp_path, recorded()) as torchserve:
        requests = a_folder(tmp_path)
        status, report = migrate(tmp_path, torchserve, "--requests", str(requests), "--seconds", "0.2")

    assert (status, report["verdict"]) == (0, "explained")
    load = report["figures"]["load"]
    assert {(each["server"], each["model"]) for each in load} == {
        (server, model) for server in ("torchserve", "modelserver") for model in ("parts", "plain")
    }
    rates = [each[clients]["requests_per_second"] for each in load for clients in ("alone", "full")]
    assert min(rates) > 0


def a_folder(folder):
    """Two files for two models, and a request in ``requests.json``."""
    requests = folder / "requests"
    for name, content in (("plain/fox.txt", FOX), ("parts/numbers.json", NUMBERS)):
        (requests / name).parent.mkdir(parents=True)
        (requests / name).write_bytes(content)
    index = [{"path": "/predictions/plain/1.0", "body": NUMBERS.decode(), "headers": {"content-type": JSON}}]
    (requests / "requests.json").write_text(json.dumps(index))
    return requests


def a_recording(folder):
    """The same, and a call over gRPC, sent to a server that is recorded."""
    out = folder / "traffic.msr"
    server = grpc_server(folder / "home", folder / "site" / "store", allow_recording="true")
    with serving(server), channel(server, "inference") as to:
        for name in ("parts", "plain"):
            server.registered(f"{name}.mar")
        command = [sys.executable, "-m", "modelserver", "record", "--out", str(out), "--requests", "4"]
        command += ["--management", str(server.settings["management_address"])]
        with subprocess.Popen(command, env=server.home.environment, stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: out.exists() or process.poll() is not None, "it records")
            calls = [("plain", FOX, "text/plain"), ("parts", NUMBERS, JSON), ("plain/1.0", NUMBERS, JSON)]
            for path, content, kind in calls:
                answer = server.inference.post(
                    f"/predictions/{path}", content=content, headers={"content-type": kind}
                )
                assert answer.status_code == 200, answer.text
            torchserve_stub = stub(to, f"{INFERENCE}InferenceAPIsService")
            assert (
                torchserve_stub.Predictions(predict("plain", data=FOX), timeout=PATIENCE).prediction
                == b"fine"
            )
            assert process.wait(PATIENCE) == 0
    return out


@pytest.mark.skipif(missing(ENVIRONMENT) is not None, reason=missing(ENVIRONMENT) or "")
@pytest.mark.timeout(400)
def test_the_real_torchserve_is_started_and_compared(tmp_path):
    """TorchServe is started beside by its command, all differences are explained, both are measured."""
    build_site(tmp_path / "site")
    program = str(Path(ENVIRONMENT or "").resolve() / "bin" / "torchserve")
    status, report = migrate(tmp_path, [program], "--seconds", "0.5")

    assert [each["request"]["name"] for each in report["differences"] if each["verdict"] == "unknown"] == []
    assert status == 0
    assert {each["server"] for each in report["figures"]["load"]} == {"torchserve", "modelserver"}
    assert report["figures"]["start_seconds"]["torchserve"] > 0
    assert report["machine"]["TorchServe"] == "0.12.0"
