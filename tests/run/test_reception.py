"""What clients connect to, as the server puts it together."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest

from modelserver.ext.console.app import AppWithConsole
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.reception import Reception
from modelserver.surface.http.aside import Aside
from modelserver.surface.inference.inference import InferenceApi


@pytest.mark.parametrize("shared", [False, True])
async def test_each_address_has_an_application(shared: bool) -> None:
    """Equal addresses have one; without a payload log the hot routes are called directly. The console is at
    the management address, unless inference is served there too.
    """
    sockets = {}
    for _ in range(1 if shared else 3):
        bound = socket.create_server(("127.0.0.1", 0))
        sockets[Address("http", "127.0.0.1", bound.getsockname()[1])] = bound
    places = list(sockets) * (3 if shared else 1)
    settings = Settings(
        inference_address=places[0],
        management_address=places[1],
        metrics_address=places[2],
        frontend_processes=1,
    )
    aside = Aside(1000)
    reception = Reception.of(
        *(cast("Any", None), cast("Any", None), settings),
        tokens=None,
        payloads=None,
        aside=aside,
        sockets=sockets,
        on_response=lambda *_: None,
        certificate=None,
        stamped_log=True,
    )
    for bound in sockets.values():
        bound.close()
    aside.close()

    assert set(reception.apps) == set(sockets)
    assert isinstance(reception.listeners._hot, InferenceApi)
    assert reception.services.intake is not None
    assert reception.services.outgoing is not None
    assert reception.services.outgoing.give_back == reception.services.intake.give_back
    with_console = [place for place, app in reception.apps.items() if isinstance(app, AppWithConsole)]
    assert with_console == ([] if shared else [places[1]])
