from tests.surface.tls.conftest import authority  # noqa: F401 - a fixture
