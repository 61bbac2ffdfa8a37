"""What a server can do without: each folder is one extension; see :mod:`modelserver.extension`.

They are opened in this order. The first watcher is the first to learn of a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from modelserver.extension import Row

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTENSIONS: Final[Mapping[str, Row]] = {
    "cluster": Row("modelserver.ext.cluster.extension", lambda settings: settings.worker_launcher != "local"),
    "stores": Row("modelserver.ext.stores.extension", lambda _: True),
    "sequences": Row("modelserver.ext.sequences.extension", lambda _: True),
    "grpc": Row("modelserver.ext.grpc.extension", lambda settings: settings.enable_grpc_api),
    "otel": Row("modelserver.ext.otel.extension", lambda settings: settings.otel != "off"),
    "payloads": Row(
        "modelserver.ext.payloads.extension", lambda settings: settings.payload_log_url is not None
    ),
    "recording": Row("modelserver.ext.recording.extension", lambda settings: settings.allow_recording),
    "workflows": Row("modelserver.ext.workflows.extension", lambda _: True),
    "rollout": Row("modelserver.ext.rollout.extension", lambda _: True),
    "triton": Row("modelserver.ext.triton.extension", lambda settings: settings.ts_open_inference_protocol),
    "console": Row("modelserver.ext.console.extension", lambda settings: settings.has_console),
    "frontends": Row("modelserver.ext.frontends.extension", lambda settings: settings.front_ends > 1),
}
