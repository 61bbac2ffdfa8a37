"""OpenTelemetry: spans of requests, and metrics, for a collector. Imported only if ``otel`` asks for it."""
