from tests.models.conftest import builder, new_registry, registry, shared_helpers, store  # noqa: F401
