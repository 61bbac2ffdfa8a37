"""Folders of models for tests of handlers."""

from __future__ import annotations

from modelserver_handlers.compat.mock_context import copy_files, download_model

__all__ = ["copy_files", "download_model"]
