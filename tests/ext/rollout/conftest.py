"""Registries of models, as those of tests/models."""

from tests.models.conftest import new_registry, preparation, registry, store

__all__ = ["new_registry", "preparation", "registry", "store"]
