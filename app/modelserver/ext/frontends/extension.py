"""Front ends: processes that handle the connections of the inference address for the server."""

from __future__ import annotations

from typing import Any

from modelserver.engine.telemetry.access import AccessLog
from modelserver.ext.frontends.messages import Setup, Tokens
from modelserver.ext.frontends.processes import Fleet
from modelserver.extension import Endpoints, Host
from modelserver.models.version import ModelVersion


async def extend(host: Host) -> None:
    """On with ``frontend_processes`` of 2 or more."""
    paths: set[str] = set()
    fleet: Fleet | None = None

    def make(endpoints: Endpoints) -> Fleet:
        nonlocal fleet
        fleet = fleet_of(endpoints)
        for path in paths:
            fleet.add_path(path)
        return fleet

    def learn(model: ModelVersion) -> None:
        """Passes a model's path to the fleet, for ever: the server refuses requests to a former model."""
        path = model.options.values["route"]
        if path is not None and path not in paths:
            paths.add(path)
            if fleet is not None:
                fleet.add_path(path)

    def describe() -> list[dict[str, Any]]:
        return [] if fleet is None else fleet.describe()

    host.listen(make, at=host.settings.inference_address)
    host.prepare(learn)
    host.routes("management", "modelserver.ext.frontends.routes", describe)


def fleet_of(endpoints: Endpoints) -> Fleet:
    """The fleet at the socket of the inference address; its processes start at once.

    They get hashes of the tokens, and the certificate over a private socket.
    """
    fleet = Fleet(endpoints, setup_of(endpoints))
    if (tokens := endpoints.services.tokens) is not None:

        def allow() -> None:
            fleet.allow(Tokens(tokens.verifier.packed()))

        allow()
        tokens.on_change(allow)
    fleet.start()
    return fleet


def setup_of(endpoints: Endpoints) -> Setup:
    """The configuration of each front end."""
    services, certificate = endpoints.services, endpoints.certificate
    settings, address = services.settings, services.settings.inference_address
    return Setup(
        settings.max_request_size,
        services.intake.share(settings.front_ends),
        AccessLog.is_on(),
        endpoints.stamped_log,
        endpoints.headers,
        () if services.tokens is None else tuple(sorted(endpoints.roles[address])),
        settings.ping_token,
        (certificate.chain, certificate.key, certificate.client_ca)
        if certificate is not None and address.scheme == "https"
        else None,
        names_failures=not settings.as_torchserve,
        max_outgoing=services.outgoing.limit,
        probes=settings.log_probes,
        paths=endpoints.paths,
    )
