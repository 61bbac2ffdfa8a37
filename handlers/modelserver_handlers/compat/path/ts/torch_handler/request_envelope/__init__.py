"""Envelopes of requests."""
