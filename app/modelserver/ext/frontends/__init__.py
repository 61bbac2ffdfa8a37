"""Processes that handle HTTP connections for one server."""
