"""Connections to hosts that may be reached; downloads as a whole are in test_download.py."""

import asyncio
import subprocess
import sys

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.archives.conftest import allowing

from modelserver.errors import ModelNotFound
from modelserver.ext.stores.fetching import CheckedTransport, is_public, resolve_host
from modelserver.models.archives.incoming import Transfer
from modelserver.models.archives.urls import UrlPolicy

LISTED = allowing(r"https://good\.com/.*", "file:///models/.*")
DEFAULT = UrlPolicy()


class Inner(httpx.AsyncBaseTransport):
    """Notes the requests that would go out; those to ``dead`` addresses fail."""

    def __init__(self, dead=()):
        self.requests = []
        self.dead = dead
        self.closed = False

    async def handle_async_request(self, request):
        self.requests.append(request)
        if request.url.host in self.dead:
            raise httpx.ConnectError("refused")
        return httpx.Response(200)

    async def aclose(self):
        self.closed = True


async def get(policy, url, *addresses, dead=()):
    async def resolve(_host, _port):
        return list(addresses)

    inner = Inner(dead)
    async with httpx.AsyncClient(
        transport=CheckedTransport(Transfer(policy=policy, resolve=resolve), url, inner)
    ) as client:
        await client.get(url)
    return inner


async def test_connection_goes_to_the_checked_address():
    """F62: under the host's name, so rebinding has no effect. A listed private host is reached."""
    inner = await get(DEFAULT, "https://models.example:8443/x.mar", "8.8.8.8")

    (request,) = inner.requests
    assert (request.url.host, request.url.port) == ("8.8.8.8", 8443)
    assert request.headers["host"] == "models.example:8443"
    assert request.extensions["sni_hostname"] == "models.example"
    assert inner.closed

    inner = await get(DEFAULT, "http://models.example/x", "8.8.8.8", "8.8.4.4", dead=("8.8.8.8",))
    assert [request.url.host for request in inner.requests] == ["8.8.8.8", "8.8.4.4"]

    inner = await get(LISTED, "https://good.com/x.mar", "10.0.0.1")
    assert inner.requests[0].url.host == "10.0.0.1"


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("8.8.8.8", "::1"), ("::ffff:169.254.169.254",)])
async def test_one_private_address_refuses_the_host(addresses):
    """F62: a name of which any address is private is refused before anything is sent."""
    with pytest.raises(ModelNotFound, match="not public"):
        await get(DEFAULT, "https://rebinding.example/x.mar", *addresses)


async def test_unknown_host_is_a_connection_error():
    async def resolve(_host, _port):
        raise OSError("Name or service not known")

    transport = CheckedTransport(Transfer(resolve=resolve), "u", Inner())
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.ConnectError, match="not known"):
            await asyncio.wait_for(client.get("http://nowhere.example/"), 5)


def test_client_is_imported_by_who_needs_it_only():
    code = (
        "import sys, modelserver.run.server\n"
        "assert 'httpx' not in sys.modules\n"
        "from modelserver.models.archives.urls import UrlPolicy\n"
        "UrlPolicy().check('https://example.com/x.mar')\n"
        "assert 'httpx' in sys.modules\n"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_PRIVATE = """
    127.0.0.1 127.8.8.8 0.0.0.0 10.0.0.1 172.16.0.1 192.168.1.1 100.64.0.1 100.100.100.200
    169.254.169.254 168.63.129.16 192.0.0.192 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 fe80::1
    fe80::1%eth0 fd00:ec2::254 ff02::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe
    2002:7f00:1:: 2001:db8::1
"""
_PUBLIC = "8.8.8.8 1.1.1.1 2606:4700::1111 ::ffff:8.8.8.8"


def test_public_and_private_addresses_are_known():
    """F62: loopback, private, link-local, metadata and multicast addresses are not public."""
    assert [address for address in (_PRIVATE + _PUBLIC).split() if is_public(address)] == _PUBLIC.split()


@given(st.ip_addresses(v=4))
def test_mapped_addresses_are_judged_like_their_own(address):
    """F62: writing an IPv4 address as an IPv6 one changes nothing."""
    assert is_public(f"::ffff:{address}") == is_public(str(address))


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1", "127.0.0.1", "::1"])
async def test_other_spellings_of_loopback_are_refused(host):
    """F62: decimal, octal, hexadecimal and short forms of an address are judged by what they resolve to."""
    assert {is_public(address) for address in await resolve_host(host, 80)} == {False}
