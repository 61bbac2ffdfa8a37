"""A local Ray without dashboard, and an application in Ray Serve, until a signal comes."""

from __future__ import annotations

import os
import signal
from typing import Any

import ray  # type: ignore[import-not-found, unused-ignore]
from ray import serve  # type: ignore[import-not-found, unused-ignore]


def serve_until_a_signal(application: Any, port: int, cpus: int, *names: str) -> None:
    """Replicas have the variables of these names."""
    variables = {name: os.environ[name] for name in (*names, "PYTHONPATH")}
    ray.init(
        include_dashboard=False,
        num_cpus=cpus,
        log_to_driver=False,
        runtime_env={"env_vars": variables},
        _node_ip_address="127.0.0.1",
    )
    options = {"host": "127.0.0.1", "port": port}
    serve.start(http_options=options, logging_config={"enable_access_log": False})
    serve.run(application, route_prefix="/")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    serve.shutdown()
    ray.shutdown()
