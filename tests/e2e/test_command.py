"""The command as operators use it: start, stop, pid file, messages and exit codes (reference 2)."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import httpx
import psutil
import pytest
from tests.e2e.serving import STARTED, addresses, free_port, wait_until, worker_processes
from tests.waiting import is_alive

ALREADY = "modelserver is already running, please use modelserver --stop to stop modelserver."


def settings(model_store, **others):
    return {**addresses(), "model_store": model_store, "enable_grpc_api": "false", **others}


@pytest.fixture
def detached(home, model_store):
    """Starts a detached server with its settings; whatever becomes of it, it is gone after the test."""
    pids = []

    def start(*flags, **others):
        chosen = settings(model_store, **others)
        config = home.write_config(chosen)
        done = home.run("--start", "--ts-config", config, *flags)
        if (pid := home.pid()) is not None:
            pids.append(pid)
        return done, chosen

    yield start
    home.run("--stop", "--foreground")
    for pid in pids:
        for process in worker_processes(pid):
            process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_detached_server_lives_from_start_to_stop(home, detached, model_store):
    """--start returns when the server listens, and prints all addresses, pages and logs; --stop --foreground
    says nothing and returns when it is gone. The log has the life of each worker.
    """
    done, chosen = detached(load_models="echo.mar", default_workers_per_model=1)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == STARTED
    pid = home.pid()
    assert home.pid_file.read_text() == str(pid)
    assert os.getsid(pid) == pid != os.getsid(0)
    assert httpx.get(f"{chosen['inference_address']}/ping", timeout=10, trust_env=False).status_code == 200
    addresses = ", ".join(
        f"{name.capitalize()}: {chosen[f'{name}_address']}" for name in ("inference", "management", "metrics")
    )
    assert addresses in done.stdout.splitlines()
    pages = f"{chosen['inference_address']}/docs, Console: {chosen['management_address']}/console"
    assert f"{pages}, Logs: {home.path / 'logs'}" in done.stdout
    wait_until(lambda: "echo: 1/1 workers ready (" in home.log(), "the model is told of")
    assert psutil.Process(worker_processes(pid)[0].pid).ppid() == pid

    again = home.run("--start", "--model-store", model_store)
    assert (again.returncode, again.stdout.strip()) == (1, ALREADY)

    stopped = home.run("--stop", "--foreground")
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "", "")
    assert not is_alive(pid)
    assert worker_processes(pid) == []
    assert not home.pid_file.exists()
    assert home.workdirs() == []
    life = re.findall(r"Worker W-\d+-echo_1\.0 (.*)", home.log())
    start_line = r"started as process \d+ and loads its model\."
    stages = (start_line, r"is ready, .* s after its start\.", "exited with status 0, as requested.")
    for output, stage in zip(life, stages, strict=True):
        assert re.fullmatch(stage, output)


def test_management_off_loopback_needs_tokens(home, detached):
    """If others can reach the address, tokens are required; the start prints where they are (F63)."""
    port = free_port()
    done, _ = detached(management_address=f"http://0.0.0.0:{port}")
    url = f"http://127.0.0.1:{port}/models"
    token = json.loads((home.path / "key_file.json").read_text())["management"]["key"]

    assert done.returncode == 0, done.stdout
    assert str(home.path / "key_file.json") in done.stdout
    assert httpx.get(url, timeout=10, trust_env=False).status_code == 400
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(url, headers=headers, timeout=10, trust_env=False).status_code == 200


def test_a_start_says_what_has_no_effect(home, detached):
    """One warning for each of TorchServe's flags and keys that mean nothing here, and for each unknown key;
    --print-settings lists values and sources; a logging configuration of one's own replaces the server's.
    """
    (home.path / "log.yaml").write_text(
        "version: 1\n"
        "disable_existing_loggers: false\n"
        "handlers: {file: {class: logging.FileHandler, filename: own.log}}\n"
        "root: {level: INFO, handlers: [file]}\n"
    )
    flags = ["--ppath", "/plugins", "--cpp-log-config", "/no/cpp.cfg", "--log-config", "log.yaml"]
    done, _ = detached(*flags, "--print-settings", job_que_size=3, netty_client_threads=8, max_request_size=7)
    lines = done.stdout.splitlines()
    warnings = [line for line in lines if line.startswith("Warning: ")]

    assert done.returncode == 0, done.stdout
    for word in ("--cpp-log-config", "--plugins-path", "job_que_size", "netty_client_threads"):
        assert sum(word in line for line in warnings) == 1, word
    assert any(line.startswith("max_request_size = 7 (") and "server.properties" in line for line in lines)
    assert "job_queue_size = 100 (default)" in lines
    wait_until(lambda: STARTED in (home.path / "own.log").read_text(), "the start is in the log")


def test_ctrl_c_drains_the_server(start_server):
    server = start_server(load_models="echo.mar", default_workers_per_model=1)
    server.wait_ready("echo")
    server.process.send_signal(signal.SIGINT)

    assert server.process.wait(10) == 0


def test_server_survives_a_closed_terminal(home, detached, model_store):
    config = home.write_config(settings(model_store))
    script = f"{sys.executable} -m modelserver --start --ts-config {config}; kill -HUP 0; sleep 5"
    subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=home.path,
        env=home.environment,
        timeout=30,
        start_new_session=True,
        check=False,
        capture_output=True,
    )

    assert home.pid() is not None
    assert is_alive(home.pid())


@pytest.mark.parametrize(("models", "code"), [("echo.mar", 0), ("echo.mar,missing_module.mar,absent.mar", 1)])
def test_wait_returns_when_models_have_loaded(home, detached, models, code):
    """With a line for each; with status 1 and the reason if one has not. The server runs on in any case."""
    done, chosen = detached("--wait", load_models=models, default_workers_per_model=1)

    assert done.returncode == code
    assert "echo: 1/1 workers ready (" in done.stdout
    if code:
        assert "Failed to load model: absent.mar: Model not found at: absent.mar" in done.stdout
        (failed,) = [line for line in done.stdout.splitlines() if line.startswith("missing_module: ")]
        assert re.match(r"missing_module: 0/1 workers ready \(.* s\): ", failed)
        assert (
            "ModuleNotFoundError: No module named 'surely_not_installed' (missing_module.py, line " in failed
        )
        assert "--requirements-file" in failed
    assert done.stdout.splitlines()[-1] == STARTED
    url = f"{chosen['inference_address']}/predictions/echo"
    assert httpx.post(url, content=b"x", timeout=10, trust_env=False).status_code == 200
