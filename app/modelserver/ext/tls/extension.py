"""The certificate of ``https`` addresses, and of gRPC over TLS."""

from __future__ import annotations

from modelserver.ext.tls.certificate import load_certificate
from modelserver.ext.tls.renewal import Renewal
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On where an address uses TLS."""
    certificate = load_certificate(host.settings)
    host.certificate = certificate
    host.renew = lambda certify: Renewal(host.settings, certificate, certify).watch()
