from tests.surface.tls.conftest import authority

__all__ = ["authority"]
