"""What a server can do without: each folder is one extension; see :mod:`modelserver.extension`.

They are opened in this order. The first watcher is the first to learn of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from modelserver.extension import ExtensionRow


def _newest_configuration(folder: Path) -> Path | None:
    # The health check of containers imports this module, and shall take little time.
    from modelserver.ext.snapshots.files import newest_configuration  # noqa: PLC0415

    return newest_configuration(folder)


EXTENSIONS: Final[Mapping[str, ExtensionRow]] = {
    "tokens": ExtensionRow("modelserver.ext.tokens.extension", lambda host: host.key_file is not None),
    "events": ExtensionRow("modelserver.ext.events.extension", lambda _: True),
    "docs": ExtensionRow("modelserver.ext.docs.extension", lambda _: True),
    "forking": ExtensionRow(
        "modelserver.ext.forking.extension", lambda host: host.settings.worker_start == "auto"
    ),
    "repository": ExtensionRow("modelserver.ext.repository.extension", lambda _: True),
    "tls": ExtensionRow("modelserver.ext.tls.extension", lambda host: host.settings.uses_tls),
    "packages": ExtensionRow("modelserver.ext.packages.extension", lambda _: True),
    "cluster": ExtensionRow(
        "modelserver.ext.cluster.extension", lambda host: host.settings.worker_launcher != "local"
    ),
    "stores": ExtensionRow("modelserver.ext.stores.extension", lambda _: True),
    "files": ExtensionRow("modelserver.ext.files.extension", lambda _: True),
    "sequences": ExtensionRow("modelserver.ext.sequences.extension", lambda _: True),
    "autoscaling": ExtensionRow("modelserver.ext.autoscaling.extension", lambda _: True),
    "parking": ExtensionRow("modelserver.ext.parking.extension", lambda _: True),
    "grpc": ExtensionRow("modelserver.ext.grpc.extension", lambda host: host.settings.enable_grpc_api),
    "openai": ExtensionRow("modelserver.ext.openai.extension", lambda host: host.settings.openai_api),
    "paths": ExtensionRow("modelserver.ext.paths.extension", lambda _: True),
    "otel": ExtensionRow("modelserver.ext.otel.extension", lambda host: host.settings.otel != "off"),
    "collector": ExtensionRow(
        "modelserver.ext.collector.extension",
        lambda host: host.settings.system_metrics_cmd is not None or not host.settings.disable_system_metrics,
    ),
    "payloads": ExtensionRow(
        "modelserver.ext.payloads.extension", lambda host: host.settings.payload_log_url is not None
    ),
    "recording": ExtensionRow(
        "modelserver.ext.recording.extension", lambda host: host.settings.allow_recording
    ),
    "workflows": ExtensionRow("modelserver.ext.workflows.extension", lambda _: True),
    "rollout": ExtensionRow("modelserver.ext.rollout.extension", lambda _: True),
    "snapshots": ExtensionRow("modelserver.ext.snapshots.extension", lambda _: True, _newest_configuration),
    "triton": ExtensionRow(
        "modelserver.ext.triton.extension", lambda host: host.settings.ts_open_inference_protocol
    ),
    "console": ExtensionRow("modelserver.ext.console.extension", lambda host: host.settings.has_console),
    "frontends": ExtensionRow(
        "modelserver.ext.frontends.extension", lambda host: host.settings.front_ends > 1
    ),
}
