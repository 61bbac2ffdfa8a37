"""OpenTelemetry: traces of requests, and metrics, sent to a collector."""

from __future__ import annotations

from modelserver.errors import ConfigError
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On unless ``otel=off``."""
    try:
        from modelserver.ext.otel.opening import OpenTelemetry  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            f"Invalid configuration: otel={host.settings.otel}: {error}; pip install 'modelserver[otel]'"
        ) from error
    otel = OpenTelemetry(host.settings)
    host.closing.push_async_callback(otel.close)
    if otel.has_traces:
        host.registry.builder.tracer = "modelserver.ext.otel.worker"
    if (tracing := otel.start(host.access.traced)) is not None:
        from modelserver.ext.otel.requests import watch_with  # noqa: PLC0415 - as above

        host.watch(watch_with(tracing), whole_calls=True)
    host.run(lambda: otel.send_metrics(host.services.metrics))
