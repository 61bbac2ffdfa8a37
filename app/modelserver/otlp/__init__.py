"""OpenTelemetry's exporters, for the server and for workers."""
