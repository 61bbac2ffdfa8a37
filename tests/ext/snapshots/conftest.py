from tests.models.conftest import new_registry, shared_helpers, store  # noqa: F401
