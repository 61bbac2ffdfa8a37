"""The certificate of ``https`` addresses, and of gRPC over TLS."""

from __future__ import annotations

from modelserver.ext.tls.certificate import load_certificate
from modelserver.ext.tls.renewal import Renewal
from modelserver.extension import Host


class Extension:
    """On where an address uses TLS."""

    async def open(self, host: Host) -> None:
        certificate = load_certificate(host.settings)
        host.certificate = certificate
        host.renew = lambda certify: Renewal(host.settings, certificate, certify).watch()

    async def close(self, grace: float) -> None:
        """Nothing is open."""
