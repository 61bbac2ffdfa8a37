"""What clients connect to: the hot routes, the applications and the listeners.

The server imports this while the first models load, which takes about as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.engine.tensors.limits import RequestLimits
from modelserver.extension import Endpoints
from modelserver.run.binding import roles_by_address
from modelserver.run.listeners import Listeners, make_edge
from modelserver.surface.api.services import LateApp
from modelserver.surface.inference.inference import InferenceApi

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from modelserver.engine.telemetry.access import OnResponse
    from modelserver.extension import Host
    from modelserver.models.settings.address import Address
    from modelserver.surface.http.edge import Edge
    from modelserver.surface.tls.context import Certificate
    from modelserver.surface.watching import Watch


def make_listeners(
    host: Host,
    sockets: Mapping[Address, socket.socket],
    on_response: OnResponse,
    certificate: Certificate | None,
    *,
    stamped_log: bool,
) -> tuple[Listeners, list[LateApp]]:
    """The listeners, which do not accept connections yet, and the applications to build.

    ``sockets`` are bound to the addresses; the extensions of ``host`` are open.
    """
    services = host.services
    roles = roles_by_address(services.settings)
    apps: dict[Address, LateApp] = {}

    def edge(address: Address) -> Edge:
        return make_edge(address, apps[address], services, on_response)

    endpoints = Endpoints(
        services,
        hot=hot_routes(host, host.watch_of(requests=True, whole_calls=True)),
        unwatched=hot_routes(host, None),
        edge=edge,
        roles=roles,
        sockets=sockets,
        on_response=on_response,
        certificate=certificate,
        stamped_log=stamped_log,
    )
    for address, own in roles.items():
        mounts = {path: make(endpoints) for role, path, make in host.mounts if role in own}
        apps[address] = LateApp(own, services, host.added_routes, mounts)
    others = [(make(endpoints), at) for make, at in host.listeners]
    return Listeners(endpoints, others), list(apps.values())


def hot_routes(host: Host, watch: Watch | None) -> InferenceApi:
    """The routes of inference, whose requests are watched."""
    services, settings = host.services, host.settings
    limits = RequestLimits(settings.max_request_instances, settings.max_request_tensors)
    return InferenceApi(
        services.registry,
        settings.max_request_size,
        services.aside,
        limits,
        host.answers,
        services.shared,
        watch,
    )
