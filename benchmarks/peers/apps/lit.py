"""LitServe with one worker on the processor, until a signal comes."""

from __future__ import annotations

from typing import Any

import litserve  # type: ignore[import-not-found, unused-ignore]


def serve(api: Any, port: int) -> None:
    """Serves the API."""
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        generate_client_file=False,
        access_log=False,
        log_level="warning",
    )
