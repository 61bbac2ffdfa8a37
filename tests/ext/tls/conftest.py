"""Certificates are tested with those of the listeners."""

from tests.surface.tls.conftest import authority

__all__ = ["authority"]
