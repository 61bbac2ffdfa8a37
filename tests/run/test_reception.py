"""What clients connect to, as the server puts it together."""

from __future__ import annotations

import socket
from typing import Any, cast
from unittest.mock import Mock

import pytest

from modelserver.engine.tensors.shared_memory import Regions
from modelserver.extension import Host
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.reception import make_listeners
from modelserver.surface.api.services import Services
from modelserver.surface.http.aside import Aside
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing

ANY: Any = None


@pytest.mark.parametrize("shared", [False, True])
async def test_each_address_has_an_application(shared: bool) -> None:
    """Equal addresses have one. What extensions add is at the addresses with its role."""
    sockets = {}
    for _ in range(1 if shared else 3):
        bound = socket.create_server(("127.0.0.1", 0))
        sockets[Address("http", "127.0.0.1", bound.getsockname()[1])] = bound
    places = list(sockets) * (3 if shared else 1)
    settings = Settings(inference_address=places[0], management_address=places[1], metrics_address=places[2])
    aside, intake = Aside(1000), Intake.of(settings)
    outgoing = Outgoing.of(settings, intake.give_back)
    services = Services(ANY, ANY, settings, None, aside, intake, outgoing, Regions(None, 0))
    host = Host(services, ANY, ANY, ANY)
    mounted, watch, request = object(), Mock(return_value=None), cast("Any", object())
    host.mount("management", "/console", lambda _: cast("Any", mounted))
    host.watch(watch)
    listeners, apps = make_listeners(host, sockets, ANY, None, stamped_log=True)
    for bound in sockets.values():
        bound.close()
    aside.close()

    endpoints = listeners._endpoints
    assert set(endpoints.roles) == set(sockets)
    assert [app._mounts for app in apps if app._mounts] == [{"/console": mounted}]
    assert cast("Any", endpoints.unwatched)._watch is None
    cast("Any", endpoints.hot)._watch(request)
    watch.assert_called_once_with(request)
