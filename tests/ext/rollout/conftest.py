from tests.models.conftest import builder, new_registry, registry, shared_helpers, store

__all__ = ["builder", "new_registry", "registry", "shared_helpers", "store"]
