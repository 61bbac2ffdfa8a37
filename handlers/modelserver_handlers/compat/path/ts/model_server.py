"""The command."""

from __future__ import annotations

from modelserver_handlers.compat.launcher import run_command as start

__all__ = ["start"]
