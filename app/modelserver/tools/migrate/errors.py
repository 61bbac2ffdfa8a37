"""The error that ends a proof without a result."""

from __future__ import annotations


class MigrationError(Exception):
    """The two servers cannot be compared; the message says why, for the user."""
