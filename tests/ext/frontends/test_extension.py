from types import SimpleNamespace

import pytest

from modelserver.ext.frontends.extension import setup_of
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("has_tokens", [False, True])
def test_setup_has_certificate_and_roles_where_they_apply(scheme, has_tokens):
    address = Address(scheme, "127.0.0.1", 1)
    endpoints = SimpleNamespace(
        services=SimpleNamespace(
            settings=Settings(inference_address=address, frontend_processes=2),
            tokens=object() if has_tokens else None,
            intake=Intake(2000, largest=1500),
            outgoing=Outgoing(1000),
        ),
        certificate=SimpleNamespace(chain=b"chain", key=b"key", client_ca=b""),
        roles={address: {"inference"}},
        stamped_log=True,
        headers=(),
        paths=(("letters", "/letters"),),
    )
    setup = setup_of(endpoints)

    assert (setup.max_incoming, setup.max_outgoing) == (1500, 1000)
    assert setup.paths == (("letters", "/letters"),)
    assert setup.tls == ((b"chain", b"key", b"") if scheme == "https" else None)
    assert setup.guarded == (("inference",) if has_tokens else ())
