"""Registries of models, as those of tests/models."""

from tests.models.conftest import new_registry, shared_helpers, store

__all__ = ["new_registry", "shared_helpers", "store"]
