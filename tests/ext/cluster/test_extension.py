import socket
from types import SimpleNamespace

import pytest

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.errors import ConfigError
from modelserver.ext.cluster.extension import check_addresses, open_cluster, show_nodes
from modelserver.models.settings.settings import Settings


def settings(address="127.0.0.1:0", **more):
    return Settings(worker_launcher="agents", worker_address=address, worker_tls="off", **more)


async def test_address_in_use_is_refused(tmp_path):
    """Also if its owner allows others to bind it."""
    (tmp_path / "other").mkdir()
    async with open_cluster(settings(), tmp_path) as first:
        address = f"127.0.0.1:{first.hub.port}"
        with pytest.raises(ConfigError, match=f"Cannot listen on worker_address={address}: "):
            async with open_cluster(settings(address), tmp_path / "other"):
                pass
        with socket.create_connection(("127.0.0.1", first.hub.port), timeout=5):
            pass
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="Cannot listen on worker_address="):
            async with open_cluster(settings(f"127.0.0.1:{taken.getsockname()[1]}"), tmp_path):
                pass


async def test_long_path_does_no_harm(tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    async with open_cluster(settings(), long) as cluster:
        assert cluster.hub.port > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"worker_address": "127.0.0.1:8080"}, "a port of its own is needed, not that of inference_address="),
        ({"worker_address": "nonsense"}, "worker_address=nonsense: host:port is needed"),
        ({"ray_address": None}, "worker_launcher=ray: ray_address is needed, too"),
        ({"ray_address": "x"}, "ray_address=x: host:port is needed"),
        ({"ray_address": "10.0.0.1:6379"}, "of the cluster at ray_address=10.0.0.1:6379 can reach is needed"),
    ],
)
def test_addresses_must_fit(changes, reason):
    with pytest.raises(ConfigError, match=f"Invalid configuration: .*{reason}"):
        check_addresses(Settings(worker_launcher="ray", **changes))


def test_a_machine_has_series_while_it_has_workers():
    metrics = ServerMetrics()
    process = SimpleNamespace(node=SimpleNamespace(name="a", resident=5))
    worker = SimpleNamespace(is_ready=True, node=process.node)
    pool = SimpleNamespace(workers=[worker, worker, SimpleNamespace(node=None)])
    model = SimpleNamespace(name="m", version="1", metrics=metrics.model("m", "1"), pool=pool)
    show_nodes(metrics, SimpleNamespace(versions=lambda: [model]))
    labels = '{model_name="m",model_version="1",node="a"}'

    for _ in range(2):
        text = b"".join(metrics.pieces(["modelserver_node_workers", "modelserver_node_worker_memory_bytes"]))
        assert f"_workers{labels} 2.0" in text.decode()
        assert f"_bytes{labels} 10.0" in text.decode()
    pool.workers.clear()
    assert b"{" not in b"".join(metrics.pieces(["modelserver_node_workers"]))
