"""Front ends: processes that handle the connections of the inference address for the server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from modelserver.engine.telemetry.logs import ACCESS_LOGGER
from modelserver.ext.frontends.messages import Setup, Tokens
from modelserver.ext.frontends.processes import Fleet
from modelserver.surface.http.cors import Cors
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing

if TYPE_CHECKING:
    from modelserver.extension import Endpoints, Host
    from modelserver.surface.auth.keeper import TokenKeeper
    from modelserver.surface.tls.context import Certificate

BACKLOG = 2048


class Extension:
    """On with ``frontend_processes`` of 2 or more."""

    async def open(self, host: Host) -> None:
        host.listen(FrontEnds, at=host.settings.inference_address)

    async def close(self, grace: float) -> None:
        """The listener has ended by now."""


class FrontEnds:
    """The fleet at the socket of the inference address; see :class:`modelserver.extension.Listener`.

    The processes start at once. They get hashes of the tokens, and the certificate over a private socket.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        services = endpoints.services
        settings, metrics = services.settings, services.metrics
        address = settings.inference_address
        self._fleet = Fleet(
            settings.front_ends,
            endpoints.sockets[address],
            setup_of(endpoints),
            endpoints.hot,
            endpoints.edge(address),
            metrics.response,
            metrics.stalled,
        )
        if services.tokens is not None:
            tokens = services.tokens
            self._allow(tokens)
            tokens.on_change(lambda: self._allow(tokens))
        self._fleet.start()

    def _allow(self, tokens: TokenKeeper) -> None:
        fingerprints = ((one.scope.value, one.digest, one.expires) for one in tokens.fingerprints)
        self._fleet.allow(Tokens(tuple(fingerprints)))

    async def open(self) -> None:
        await self._fleet.open(BACKLOG)

    def certify(self, certificate: Certificate) -> None:
        self._fleet.certify((certificate.chain, certificate.key, certificate.client_ca))

    async def refuse(self) -> None:
        await self._fleet.refuse()

    async def close(self, grace: float) -> None:
        await self._fleet.close(grace)


def setup_of(endpoints: Endpoints) -> Setup:
    """The configuration of each front end."""
    settings, certificate = endpoints.services.settings, endpoints.certificate
    address, count = settings.inference_address, settings.front_ends
    cors = Cors.of(settings)
    return Setup(
        settings.max_request_size,
        Intake.of(settings, count).limit,
        logging.getLogger(ACCESS_LOGGER).isEnabledFor(logging.INFO),
        endpoints.stamped_log,
        cors.pairs if cors is not None else (),
        () if endpoints.services.tokens is None else tuple(sorted(endpoints.roles[address])),
        settings.ping_token,
        (certificate.chain, certificate.key, certificate.client_ca)
        if certificate is not None and address.scheme == "https"
        else None,
        names_failures=not settings.as_torchserve,
        max_outgoing=Outgoing.of(settings, front_ends=count).limit,
        probes=settings.log_probes,
    )
