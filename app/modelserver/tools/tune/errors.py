"""Errors that end a tuning without a result."""

from __future__ import annotations


class TuningError(Exception):
    """The model cannot be tuned; the message says why, for the user."""


class SettingRefused(TuningError):
    """The server rejected a setting; others may still work."""
