import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from tests.models.archives.conftest import allowing

from modelserver.errors import Conflict, DownloadFailed, InternalError, ModelNotFound
from modelserver.ext.stores import extension
from modelserver.models.archives.incoming import AS_USUAL, Transfer
from modelserver.models.archives.sources import copy_file, locate
from modelserver.models.archives.urls import UrlPolicy

DATA = bytes(range(256)) * 10_000
LOCAL = allowing(r"http://127\.0\.0\.1:\d+/.*")
DEFAULT = UrlPolicy()


class Site(BaseHTTPRequestHandler):
    """A small web site with the faults of real ones."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/x.mar", "/my%20model.mar"):
            self._answer(200, DATA)
        elif path == "/chunked.mar":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(DATA)
        elif path == "/cut.mar":
            self._answer(200, DATA[:1000], length=len(DATA))
        elif path == "/gzip.mar":
            self._answer(200, DATA, encoding="gzip")
        elif path == "/moved.mar":
            self._answer(302, b"", location="/x.mar")
        elif path == "/loop.mar":
            self._answer(302, b"", location="/loop.mar")
        elif path == "/inside.mar":
            self._answer(302, b"", location="http://169.254.169.254/latest/meta-data/x.mar")
        elif path == "/file.mar":
            self._answer(302, b"", location="file:///etc/passwd")
        else:
            self._answer(404, b"<html>nothing here</html>")

    def _answer(self, status, body, *, length=None, location="", encoding=""):
        self.send_response(status)
        self.send_header("content-length", str(len(body) if length is None else length))
        if location:
            self.send_header("location", location)
        if encoding:
            self.send_header("content-encoding", encoding)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have seen enough
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


async def download(url: str, store: Path, policy: UrlPolicy, transfer: Transfer = AS_USUAL) -> Path:
    located = await locate(url, store, policy, store, transfer, download=extension.download)
    assert located.path == located.downloaded
    return located.path


def stored(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir()}


def network(answer: Callable[[httpx.Request], httpx.Response], address: str = "8.8.8.8") -> Transfer:
    async def resolve(host: str, _port: int) -> list[str]:
        return ["10.0.0.1"] if host.startswith("private") else [address]

    return Transfer(resolve=resolve, transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("x.mar?token=1", "x.mar"),
        ("my%20model.mar", "my model.mar"),
        ("chunked.mar", "chunked.mar"),
        ("moved.mar", "moved.mar"),
    ],
    ids=["with a query", "encoded", "of unknown length", "redirected"],
)
async def test_download_arrives_in_the_store(site, store, page, name):
    steps = []
    transfer = Transfer(progress=lambda *step: steps.append(step))
    path = await download(f"{site}/{page}", store, LOCAL, transfer)

    assert path == store / name
    assert steps[-1] == (len(DATA), None if page == "chunked.mar" else len(DATA))
    assert stored(store) == {name: DATA}


@pytest.mark.parametrize("page", ["missing.mar", "cut.mar", "file.mar"])
async def test_failed_download_has_torchserves_words(site, store, page):
    """F62: what cannot be fetched is a 400 in TorchServe's words, and no part of it stays."""
    with pytest.raises(DownloadFailed) as caught:
        await download(f"{site}/{page}", store, LOCAL)

    assert caught.value.message == f"Failed to download archive from: {site}/{page}"
    assert stored(store) == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x.mar", "http://127.0.0.1:99999/x", "http://[/x.mar"])
async def test_unreachable_place_is_a_failed_download(store, url):
    """F62: a refused connection and a malformed URL are the same 400."""
    with pytest.raises(DownloadFailed, match=r"^Failed to download archive from: "):
        await download(url, store, allowing(".*"))
    assert stored(store) == {}


@pytest.mark.parametrize(
    ("page", "limits", "reason"),
    [
        ("x.mar", Transfer(max_bytes=1000), "larger than 1000 bytes"),
        ("chunked.mar", Transfer(max_bytes=1000), "larger than 1000 bytes"),
        ("loop.mar", Transfer(), "more than 5 redirects"),
        ("moved.mar", Transfer(max_redirects=0), "more than 0 redirects"),
        ("gzip.mar", Transfer(), "content encoding"),
        *((name, Transfer(), "file name") for name in ("", "%2e", ".hidden", "x" * 300)),
        *((name, Transfer(), "file name") for name in ("a%2Fb.mar", "a%5Cb.mar", "a%00b.mar")),
    ],
)
async def test_limits_hold(site, store, page, limits, reason):
    """F62: of size, redirects and encoding; what was stored is removed; a URL ends in a plain file name."""
    with pytest.raises(DownloadFailed, match=reason):
        await download(f"{site}/{page}", store, LOCAL, limits)
    assert stored(store) == {}


class Pieces(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"x"


TRACE = (("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"), ("baggage", "user=7"))


@pytest.mark.parametrize(
    ("target", "is_sent"),
    [
        ("https://models.example/new.mar", True),
        ("https://models.example:443/new.mar", True),
        ("https://models.example:8443/new.mar", False),
        ("https://other.example/new.mar", False),
    ],
)
async def test_trace_of_the_caller_goes_to_its_host_only(store, target, is_sent):
    seen = []

    def answer(request):
        seen.append({name: request.headers.get(name) for name, _ in TRACE})
        if request.url.path == "/x.mar":
            return httpx.Response(302, headers={"location": target})
        return httpx.Response(200, stream=Pieces())

    transfer = replace(network(answer), trace=TRACE)
    await download("https://models.example/x.mar", store, DEFAULT, transfer)

    assert seen == [dict(TRACE), dict(TRACE) if is_sent else {"traceparent": None, "baggage": None}]


async def test_redirect_to_another_place_is_refused(site, store):
    """F62: a redirect that the operator's patterns do not match is not followed."""
    with pytest.raises(ModelNotFound) as caught:
        await download(f"{site}/inside.mar", store, LOCAL)

    assert caught.value.message.startswith(f"Given URL {site}/inside.mar does not match any allowed URL(s)")
    assert stored(store) == {}


@pytest.mark.parametrize(
    "target",
    [
        "http://private.example/x",
        "http://user@public.example/x",
        "https://public.example/%2e%2e/x",
        "http://public.example/x",
    ],
    ids=["private", "credentials", "dots", "downgrade"],
)
async def test_redirect_is_checked_again(store, target):
    """F62: a public host must not redirect to a private one, to disguised URLs or from https to http."""
    sent = []

    def answer(request):
        sent.append(str(request.url))
        return httpx.Response(302, headers={"location": target})

    with pytest.raises((ModelNotFound, DownloadFailed)):
        await download("https://public.example/x.mar", store, DEFAULT, network(answer))

    assert sent == ["https://8.8.8.8/x.mar"]
    assert stored(store) == {}


async def test_slow_place_is_abandoned(store):
    """F62: a download has a time limit in all."""

    async def drip():
        yield b"x"
        await asyncio.Event().wait()

    endless = network(lambda _: httpx.Response(200, content=drip()))

    with pytest.raises(DownloadFailed, match=r"longer than 0\.05 seconds"):
        await download("https://a.example/x.mar", store, DEFAULT, replace(endless, total_timeout=0.05))
    assert stored(store) == {}


async def test_cancelled_download_leaves_nothing(store):
    started = asyncio.Event()

    async def drip():
        yield bytes(2 << 20)
        started.set()
        await asyncio.Event().wait()

    endless = network(lambda _: httpx.Response(200, content=drip()))
    task = asyncio.ensure_future(download("https://a.example/x.mar", store, DEFAULT, endless))
    await started.wait()
    assert [name[-5:] for name in stored(store)] == [".part"]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert task.cancelled()
    assert stored(store) == {}


async def test_existing_file_or_unwritable_store_is_no_failed_download(site, store, tmp_path):
    """Such a file is never replaced (409). F56: a store that takes no files is the server's failure."""
    (store / "x.mar").write_bytes(b"mine")

    with pytest.raises(Conflict) as caught:
        await download(f"{site}/x.mar", store, LOCAL)

    assert caught.value.message == "Model file already exists x.mar"
    assert stored(store) == {"x.mar": b"mine"}

    with pytest.raises(InternalError, match=r"^Failed to save model: http://127"):
        await download(f"{site}/x.mar", tmp_path / "none", LOCAL)


async def test_one_of_two_simultaneous_downloads_wins(site, store):
    results = await asyncio.gather(
        *(download(f"{site}/x.mar", store, LOCAL) for _ in range(2)), return_exceptions=True
    )

    assert sorted(type(result).__name__ for result in results) == ["ModelFileExists", "PosixPath"]
    assert stored(store) == {"x.mar": DATA}


async def test_missing_hard_links_are_no_obstacle(site, store, monkeypatch):
    """On a file system without hard links the file is renamed instead, and still replaces nothing."""

    refuse = Mock(side_effect=PermissionError("no links here"))
    monkeypatch.setattr("modelserver.models.archives.incoming.os.link", refuse)

    await download(f"{site}/x.mar", store, LOCAL)

    assert stored(store) == {"x.mar": DATA}


async def test_file_is_copied(tmp_path, store):
    """A file is copied under the same rules: named, limited, never replacing."""
    (tmp_path / "x.mar").write_bytes(DATA)

    assert await copy_file("file:///x.mar", tmp_path / "x.mar", store) == store / "x.mar"
    with pytest.raises(Conflict, match=r"already exists x\.mar"):
        await copy_file("file:///x.mar", tmp_path / "x.mar", store)
    (tmp_path / "y.mar").write_bytes(DATA)
    with pytest.raises(DownloadFailed, match="larger than 1 bytes"):
        await copy_file("file:///y.mar", tmp_path / "y.mar", store, Transfer(max_bytes=1))
    with pytest.raises(DownloadFailed, match=r"^Failed to download archive from: file:///gone\.mar$"):
        await copy_file("file:///gone.mar", tmp_path / "gone.mar", store)
    assert stored(store) == {"x.mar": DATA}
