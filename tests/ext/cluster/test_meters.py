from types import SimpleNamespace

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.cluster.meters import show_nodes


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
