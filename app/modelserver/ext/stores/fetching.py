"""Downloads over http(s); imported only for them, as the client takes 60 ms."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import httpx

from modelserver.errors import DownloadFailed
from modelserver.models.archives.incoming import Incoming, Transfer
from modelserver.models.archives.urls import scheme

_LOG: Final = logging.getLogger("modelserver.models")
# What :func:`fetch` raises when the other server or the network fails.
_FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL, ValueError)
_CHUNK: Final = 1 << 20
_MAX_ADDRESSES: Final = 8
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# Not public, whatever Python's tables say; the first two serve a machine's credentials.
_NEVER_PUBLIC: Final = tuple(
    map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "64:ff9b:1::/48", "2001:db8::/32"))
)


class CheckedTransport(httpx.AsyncBaseTransport):
    """Connects only to the very addresses that it checked against the policy of the transfer.

    Host header and TLS keep the host name. ``original`` is the URL that errors name.
    """

    def __init__(self, transfer: Transfer, original: str, inner: httpx.AsyncBaseTransport) -> None:
        self._transfer = transfer
        self._original = original
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send to the first checked address that accepts a connection.

        Raises ``ModelNotFound`` for a forbidden address, ``httpx.ConnectError`` if none answers.
        """
        host = request.url.raw_host.decode("ascii")
        addresses = await self._checked(host, request.url)
        failure: httpx.TransportError = httpx.ConnectError(f"{host} has no address")
        for address in addresses[:_MAX_ADDRESSES]:
            pinned = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _checked(self, host: str, url: httpx.URL) -> list[str]:
        port = url.port or (443 if url.scheme == "https" else 80)
        if port > 65535:
            raise httpx.ConnectError(f"{host}: invalid port {port}")
        try:
            addresses = await (self._transfer.resolve or resolve_host)(host, port)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"{host}: {error}") from error
        for address in addresses:
            self._transfer.policy.check_host(self._original, is_public=is_public(address))
        return addresses


async def resolve_host(host: str, port: int) -> list[str]:
    """All addresses of a host as the system resolves it: also ``127.1`` and ``2130706433`` (F62)."""
    loop = asyncio.get_running_loop()
    records = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in records))


def is_public(address: str) -> bool:
    """Whether an IP address is public; for IPv6 that embeds an IPv4 address, whether that one is."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        carried = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if carried is None and ip in _NAT64:
            carried = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if carried is not None:
            return is_public(str(carried))
    special = (
        ip.is_multicast or ip.is_reserved or ip.is_unspecified or any(ip in net for net in _NEVER_PUBLIC)
    )
    return ip.is_global and not special


async def download(url: str, store: Path, transfer: Transfer) -> Path:
    """See :data:`modelserver.models.archives.store.Download`."""
    with Incoming(store, file_name(url), url, transfer) as incoming:
        try:
            await asyncio.wait_for(fetch(incoming, transfer), transfer.total_timeout)
        except asyncio.TimeoutError as error:
            raise DownloadFailed.of(url, f"it took longer than {transfer.total_timeout:g} seconds") from error
        except _FAILURES as error:
            _LOG.warning("Download of %s failed: %s", url, error or type(error).__name__)
            raise DownloadFailed.of(url) from error
        return await asyncio.to_thread(incoming.publish)


async def fetch(incoming: Incoming, transfer: Transfer) -> None:
    """Download an http(s) URL, checking every redirect against the policy.

    Raises one of ``_FAILURES``, ``ModelNotFound`` for a redirect that is not allowed, and ``DownloadFailed``.
    """
    url = incoming.url
    inner = transfer.transport or httpx.AsyncHTTPTransport()
    timeout = httpx.Timeout(transfer.read_timeout, connect=transfer.connect_timeout)
    # Without content encodings there are no decompression bombs.
    headers = {"accept-encoding": "identity", "user-agent": "modelserver"}
    async with httpx.AsyncClient(
        transport=CheckedTransport(transfer, url, inner),
        timeout=timeout,
        headers=headers,
        trust_env=False,
        follow_redirects=False,
    ) as client:
        place = url
        for _ in range(transfer.max_redirects + 1):
            # Baggage is for whom the caller named: nobody else learns of it.
            trace = transfer.trace if _origin(place) == _origin(url) else ()
            async with client.stream("GET", place, headers=trace) as response:
                if response.next_request is None:
                    await _store(response, incoming, transfer)
                    return
                place = _redirected(response, place)
                transfer.policy.check(place, original=url)
    raise DownloadFailed.of(url, f"more than {transfer.max_redirects} redirects")


def _origin(url: str) -> tuple[str, bytes, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.raw_host, parsed.port


def _redirected(response: httpx.Response, place: str) -> str:
    target = response.next_request
    new = str(target.url) if target is not None else ""
    if scheme(new) not in ("http", "https") or (scheme(place) == "https" and scheme(new) == "http"):
        raise httpx.UnsupportedProtocol(f"redirected from {place} to {new}")
    return new


async def _store(response: httpx.Response, incoming: Incoming, transfer: Transfer) -> None:
    if response.status_code != 200:
        raise httpx.HTTPStatusError(
            f"HTTP status {response.status_code}", request=response.request, response=response
        )
    if response.headers.get("content-encoding", "identity") != "identity":
        raise DownloadFailed.of(incoming.url, "the server used a content encoding, which was not accepted")
    announced = response.headers.get("content-length", "")
    total = int(announced) if announced.isdecimal() else None
    incoming.expect(total)
    async for chunk in response.aiter_raw(_CHUNK):
        await asyncio.to_thread(incoming.write, chunk)
        if transfer.progress is not None:
            transfer.progress(incoming.size, total)
    if total is not None and incoming.size != total:
        raise httpx.RemoteProtocolError(f"{incoming.size} of {total} bytes arrived")


def file_name(url: str) -> str:
    """The last component of the URL's path. Raises ``DownloadFailed`` if it is not a valid file name."""
    try:
        path = httpx.URL(url).raw_path.decode("ascii").partition("?")[0]
    except httpx.InvalidURL as error:
        raise DownloadFailed.of(url) from error
    name = unquote(path.rpartition("/")[2])
    if (
        not name
        or name.startswith(".")
        or any(character < " " or character in "/\\\x7f" for character in name)
    ):
        raise DownloadFailed.of(url, "it does not end in a file name")
    if len(name.encode()) > 255:
        raise DownloadFailed.of(url, "its file name is too long")
    return name
