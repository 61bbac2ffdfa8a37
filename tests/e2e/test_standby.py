"""Two servers with one folder of snapshots: the second takes over when the first is killed."""

import contextlib
import signal

import httpx
import pytest
from tests.e2e.serving import Home, Server, wait_until

pytestmark = pytest.mark.slow  # starts two servers


def test_standby_takes_over(tmp_path, model_store):
    """It opens the same addresses, not before, and loads the models that the other one had anew."""
    shared = {"standby": "true", "snapshot_folder": tmp_path / "shared"}
    homes = [Home(tmp_path / "first"), Home(tmp_path / "second")]
    first = Server(homes[0], model_store, settings=shared).start()
    try:
        standby = homes[1].popen(
            "--start", "--foreground", "--ts-config", homes[1].write_config(first.settings)
        )
        try:
            wait_until(lambda: "Standby: process " in homes[1].output(), "the second stands by")
            assert f"process {first.pid} on " in homes[1].output()
            first.registered("echo.mar", batch_size=4)
            first.process.kill()
            first.process.wait(10)
            wait_until(lambda: serves(first), "the second serves")
            assert first.describe("echo")["batchSize"] == 4
        finally:
            standby.send_signal(signal.SIGTERM)
            standby.wait(30)
    finally:
        first.kill()


def serves(server):
    with contextlib.suppress(httpx.TransportError):
        return server.predict("echo", b"x").status_code == 200
    return False
