from types import SimpleNamespace

import pytest

from modelserver.ext.frontends.extension import setup_of
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("has_tokens", [False, True])
def test_setup_has_certificate_and_roles_where_they_apply(scheme, has_tokens):
    address = Address(scheme, "127.0.0.1", 1)
    endpoints = SimpleNamespace(
        services=SimpleNamespace(
            settings=Settings(inference_address=address, frontend_processes=2),
            tokens=object() if has_tokens else None,
        ),
        certificate=SimpleNamespace(chain=b"chain", key=b"key", client_ca=b""),
        roles={address: {"inference"}},
        stamped_log=True,
        headers=(),
        paths=(("letters", "/letters"),),
    )
    setup = setup_of(endpoints)

    assert setup.paths == (("letters", "/letters"),)
    assert setup.tls == ((b"chain", b"key", b"") if scheme == "https" else None)
    assert setup.guarded == (("inference",) if has_tokens else ())
