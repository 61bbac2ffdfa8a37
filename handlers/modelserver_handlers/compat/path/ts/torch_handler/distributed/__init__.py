"""Handlers over several processes."""
