"""Observability: metrics, readings of the host, logs."""
