"""OpenTelemetry: traces of requests, and metrics, sent to a collector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.errors import ConfigError
from modelserver.extension import Host

if TYPE_CHECKING:
    from modelserver.ext.otel.opening import OpenTelemetry


class Extension:
    """On unless ``otel=off``."""

    def __init__(self) -> None:
        self._otel: OpenTelemetry | None = None

    async def open(self, host: Host) -> None:
        try:
            from modelserver.ext.otel.opening import OpenTelemetry  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError(
                f"Invalid configuration: otel={host.settings.otel}: {error}; pip install 'modelserver[otel]'"
            ) from error
        otel = self._otel = OpenTelemetry(host.settings)
        if otel.has_traces:
            host.registry.builder.tracer = "modelserver.ext.otel.worker"
        if (tracing := otel.start(host.access.traced)) is not None:
            from modelserver.ext.otel.requests import watch_with  # noqa: PLC0415 - as above

            host.watch(watch_with(tracing), whole_calls=True)
        host.run(lambda: otel.send_metrics(host.services.metrics))

    async def close(self, grace: float) -> None:
        if self._otel is not None:
            await self._otel.close()
