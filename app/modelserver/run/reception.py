"""What clients connect to: the hot routes, the applications, the front ends and the listeners.

The server imports this while the first models load, which takes about as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from modelserver.engine.resources import usable_cpus
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.shared_memory import Regions
from modelserver.ext.console.app import AppWithConsole
from modelserver.ext.frontends.processes import front_ends
from modelserver.ext.payloads.rest import LoggedRoutes
from modelserver.run.binding import roles_by_address
from modelserver.run.listeners import Listeners, make_fleet
from modelserver.run.watching import show_payloads
from modelserver.surface.api.services import LateApp, Services
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing
from modelserver.surface.inference.inference import InferenceApi

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from modelserver.engine.telemetry.access import OnResponse
    from modelserver.engine.telemetry.metrics import ServerMetrics
    from modelserver.ext.otel.spans import Tracing
    from modelserver.ext.payloads.log import PayloadLog
    from modelserver.ext.workflows.workflows import Workflows
    from modelserver.models.registry import Registry
    from modelserver.models.settings.address import Address
    from modelserver.models.settings.settings import Settings
    from modelserver.surface.auth.keeper import TokenKeeper
    from modelserver.surface.http.aside import Aside
    from modelserver.surface.http.exchange import HotRoutes
    from modelserver.surface.tls.context import Certificate


@dataclass(frozen=True, slots=True)
class Reception:
    """The listeners, which do not accept connections yet, and what answers there."""

    services: Services
    apps: Mapping[Address, LateApp]
    listeners: Listeners

    @classmethod
    def of(
        cls,
        registry: Registry,
        metrics: ServerMetrics,
        settings: Settings,
        *,
        tokens: TokenKeeper | None,
        payloads: PayloadLog | None,
        aside: Aside,
        sockets: Mapping[Address, socket.socket],
        on_response: OnResponse,
        certificate: Certificate | None,
        stamped_log: bool,
        workflows: Workflows | None = None,
        tracing: Tracing | None = None,
    ) -> Reception:
        """``sockets`` are bound to the addresses; front ends are started if the settings want some."""
        recorder, intake = None, Intake.of(settings)
        count = front_ends(settings.frontend_processes, usable_cpus())
        outgoing = Outgoing.of(settings, intake.give_back, count)
        if settings.allow_recording:
            recorder = import_module("modelserver.ext.recording.recorder").Recorder(outgoing=outgoing)
        services = Services(
            *(registry, metrics, settings, tokens, payloads, aside, intake, workflows),
            recorder=recorder,
            outgoing=outgoing,
            shared=Regions(settings.shared_memory_prefix, settings.max_request_size),
            tracing=tracing,
        )
        unwatched = hot = _hot_routes(services)
        if tracing is not None:
            hot = import_module("modelserver.ext.otel.requests").TracedRoutes(hot, tracing)
        if recorder is not None:
            hot = import_module("modelserver.ext.recording.recorder").RecordedRoutes(hot, recorder)
        apps = {address: LateApp(roles, services) for address, roles in roles_by_address(settings).items()}
        if settings.has_console:
            address = settings.management_address
            apps[address] = AppWithConsole(roles_by_address(settings)[address], services, unwatched)
        fleet = None
        if count > 1:
            fleet = make_fleet(
                *(count, sockets[settings.inference_address], settings, services, hot, on_response),
                apps[settings.inference_address],
                stamped_log=stamped_log,
                certificate=certificate,
            )
            fleet.start()
        listeners = Listeners(settings, services, hot, on_response, apps, fleet, certificate=certificate)
        return cls(services, apps, listeners)


def _hot_routes(services: Services) -> HotRoutes:
    """The inference routes, with the payload log if there is one."""
    settings, payloads, aside = services.settings, services.payloads, services.aside
    limits = RequestLimits(settings.max_request_instances, settings.max_request_tensors)
    assert aside is not None  # noqa: S101 - given above
    workflows = None if services.workflows is None else services.workflows.serve
    hot = InferenceApi(
        services.registry, settings.max_request_size, aside, limits, workflows, services.shared
    )
    if payloads is None:
        return hot
    payloads.start()
    show_payloads(payloads, services.metrics)
    return LoggedRoutes(hot, payloads)
