import asyncio
import socket
from types import SimpleNamespace

import httpx
import pytest

from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.extension import Endpoints
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.listeners import Listeners, check_of_pages, make_edge, watch_of
from modelserver.surface.api.late_app import LateApp
from modelserver.surface.api.services import Services
from modelserver.surface.auth.origins import ForeignName
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing
from modelserver.surface.watching import Watcher


class Hot:
    def find(self, url):
        return None


async def test_a_listener_does_not_wait_for_its_application():
    """It accepts connections at once; a request that needs the application is answered when that is built."""
    bound = socket.create_server(("127.0.0.1", 0))
    address = Address("http", "127.0.0.1", bound.getsockname()[1])
    settings = Settings(inference_address=address, management_address=address, metrics_address=address)
    nothing, intake = None, Intake.of(settings)
    outgoing = Outgoing.of(settings, intake.give_back)
    shared = SharedMemory(allowed=False, most=0)
    services = Services(nothing, nothing, settings, None, nothing, intake, outgoing, shared)
    late = LateApp({"metrics"}, services)
    rest = {"paths": (), "headers": (), **dict.fromkeys(("watch_request", "watch_call", "certificate"))}
    endpoints = Endpoints(
        services,
        Hot(),
        Hot(),
        edge=lambda address: make_edge(address, late, services, lambda *_: None),
        roles={address: {"inference", "management", "metrics"}},
        sockets={address: bound},
        on_response=lambda *_: None,
        stamped_log=True,
        **rest,
    )
    listeners = Listeners(endpoints)
    await listeners.open()
    try:
        assert late._building is None
        async with httpx.AsyncClient(base_url=str(address)) as client:
            answer = await asyncio.wait_for(client.get("/livez"), 60)
    finally:
        await listeners.close(1.0)

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("address", "is_refused"),
    [
        (Address("http", "127.0.0.1", 8081), True),
        (Address("http", "localhost", 8081), True),
        (Address("http", "0.0.0.0", 8081), False),
        (Address("unix", path="/run/m"), False),
    ],
)
def test_only_loopback_addresses_ask_for_the_name(address, is_refused):
    """A page can be made to lead to loopback; elsewhere all clients are allowed; pages reach no socket."""
    check = check_of_pages(address, Settings(management_address=address))
    try:
        check("GET", "/models", [(b"host", b"evil.example")])
        refused = False
    except ForeignName:
        refused = True

    assert refused is is_refused


def test_calls_and_their_requests_are_watched_apart():
    """Over gRPC there are two watches; over REST calls and requests are the same."""
    server = SimpleNamespace(watches=[])
    seen = []

    def watch(name):
        def seeing(request):
            seen.append((name, request))
            return Watcher()

        return seeing

    server.watches = [(watch("requests"), False), (watch("calls"), True)]
    for requests, whole_calls in ((True, True), (True, False), (False, True), (False, False)):
        if (joined := watch_of(server, requests=requests, whole_calls=whole_calls)) is not None:
            joined((requests, whole_calls))

    both = [(name, (True, True)) for name in ("requests", "calls")]
    assert seen == [*both, ("requests", (True, False)), ("calls", (False, True))]
