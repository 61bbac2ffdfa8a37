import asyncio
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import httpx
import pytest
from tests.e2e.serving import free_port

from modelserver.engine.telemetry import stalls
from modelserver.errors import ConfigError
from modelserver.ext import EXTENSIONS
from modelserver.models.settings.address import Address
from modelserver.models.settings.load import load_settings
from modelserver.run.binding import bind
from modelserver.run.server import Reports, Server, address_lines, raise_descriptor_limit


def free_address():
    return Address("http", "127.0.0.1", free_port())


@pytest.fixture
def temp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # It would hold for the tests that follow, too.
    monkeypatch.setattr(stalls, "limit_tracebacks", lambda: None)
    return tmp_path


def test_what_is_not_used_is_not_imported():
    code = "import sys, modelserver.run.server; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    own = ("ext.cluster", "ext.recording", "ext.workflows", "ext.console", "ext.grpc", "tools")
    unwanted = ("ray", "torch", *(f"modelserver.{name}" for name in own))

    assert [
        name for name in run.stdout.split() if f"{name}.".startswith(tuple(f"{u}." for u in unwanted))
    ] == []


def test_descriptor_limit_is_raised():
    """The soft limit of open files is raised to the hard one (F38)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > min(1024, hard - 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have one heap anyhow")
@pytest.mark.parametrize(("wish", "shared"), [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)])
def test_threads_share_a_heap(wish, shared):
    """However many threads allocate, there is one heap to give memory back from, unless the operator
    wishes otherwise.
    """
    program = (
        "import ctypes, sys, threading; from modelserver.run.server import share_heap; share_heap();"
        "barrier = threading.Barrier(4);"
        "threads = [threading.Thread(target=lambda: (bytearray(100_000), barrier.wait())) for _ in range(4)];"
        "[each.start() for each in threads]; [each.join() for each in threads];"
        "libc = ctypes.CDLL(None); libc.fdopen.restype = ctypes.c_void_p;"
        "out = libc.fdopen(1, b'w'); libc.malloc_info(0, ctypes.c_void_p(out)); libc.fflush(None)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment | wish
    )

    assert (done.stdout.count("<heap nr=") == 1) is shared, done.stdout


def settings_of(tmp_path, **changes):
    (tmp_path / "store").mkdir(exist_ok=True)
    values = {f"{name}_address": free_address() for name in ("inference", "management", "metrics")}
    lines = {**values, "model_store": tmp_path / "store", "enable_grpc_api": "false", **changes}
    config = tmp_path / "config.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return load_settings({"ts_config": str(config)}, {}, tmp_path)


def test_the_start_tells_where_everything_is(tmp_path):
    loaded = settings_of(tmp_path, management_address="http://127.0.0.1:8081")
    without = settings_of(tmp_path, enable_console="false", inference_address=f"unix:{tmp_path}/socket")

    assert "Console: http://127.0.0.1:8081/console, Logs: " in address_lines(loaded.settings)[1]
    assert address_lines(without.settings)[1].startswith("Logs: ")


async def test_a_server_runs_until_a_signal(temp, monkeypatch):
    # The collector is that of the tests, too.
    monkeypatch.setattr("modelserver.run.server.freeze_garbage", lambda: None)
    loaded = settings_of(temp, inference_address=f"unix:{temp}/socket")
    started = asyncio.Event()
    extensions = {"collector": EXTENSIONS["collector"]}
    server = Server(loaded, Reports(lambda _: started.set()), stamped_log=False, extensions=extensions)
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(started.wait(), 20)
    by_socket = httpx.AsyncHTTPTransport(uds=str(temp / "socket"))
    async with httpx.AsyncClient(transport=by_socket, timeout=10) as client:
        assert (await client.get("http://local/ping")).status_code == 200
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        assert "MemoryUsed{" in (await client.get(f"{loaded.settings.metrics_address}/metrics")).text
    server._on_signal()
    await asyncio.wait_for(running, 20)

    left = os.listdir(temp)
    assert not [name for name in left if name.startswith("modelserver-")]
    assert "socket" not in left
    bind(loaded.settings.management_address, "management_address").close()


async def test_taken_port_leaves_nothing(temp):
    """When one of its addresses cannot be had, a server leaves neither sockets nor directories (F56)."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        taken_address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        loaded = settings_of(temp, inference_address=f"unix:{temp}/socket", metrics_address=taken_address)
        server = Server(loaded, Reports(), stamped_log=False)
        with pytest.raises(ConfigError, match="metrics_address"):
            await server.run()

    left = os.listdir(temp)
    assert not [name for name in left if name.startswith("modelserver-")]
    assert "socket" not in left
    bind(loaded.settings.management_address, "management_address").close()


async def test_second_signal_ends_the_process(temp, monkeypatch):
    ended = []
    monkeypatch.setattr("modelserver.run.server.os", SimpleNamespace(_exit=ended.append))
    server = Server(settings_of(temp), Reports(), stamped_log=False)
    server._on_signal()
    assert ended == []
    server._on_signal()

    assert ended == [1]
