import asyncio
import contextlib
import socket
from functools import partial

import psutil
import pytest
from tests.models.archives.conftest import allowing
from tests.object_stores import s3
from tests.waiting import until

from modelserver.errors import BadRequest, DownloadFailed, ModelNotFound
from modelserver.ext.stores.address import parse_address
from modelserver.ext.stores.client import Listing, fetch
from modelserver.ext.stores.extension import Stores, download
from modelserver.models.archives import sources
from modelserver.models.archives.incoming import Transfer
from modelserver.models.archives.urls import UrlPolicy

pytestmark = pytest.mark.slow  # needs the libraries of object stores, which each fetch imports in a process


@pytest.fixture(scope="module")
def bucket():
    with s3() as made:
        made.put("store/x.mar", b"x" * (9 << 20))
        made.put("store/deep/a.py", b"a")
        yield made


@pytest.fixture(autouse=True)
def _environment(bucket, monkeypatch, tmp_path):
    for name, value in {**bucket.variables, "MODELSERVER_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)


def fetchers():
    results = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "modelserver.ext.stores" in child.cmdline():
                results.append(child)
    return results


async def test_missing_or_too_large_object_is_refused(tmp_path):
    url = "s3://models/store/none.mar"
    with pytest.raises(ModelNotFound, match=rf"^Model not found at: {url}$"):
        await fetch(url, parse_address(url), tmp_path)
    url = "s3://models/store/x.mar"
    with pytest.raises(DownloadFailed, match=rf"from: {url}: it is larger than 1000 bytes"):
        await fetch(url, parse_address(url), tmp_path, Transfer(max_bytes=1000))


@pytest.fixture
def silent(monkeypatch):
    """A store that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield


@pytest.mark.usefixtures("silent")
async def test_silent_store_is_abandoned(tmp_path):
    url = "s3://models/store/x.mar"
    with pytest.raises(DownloadFailed, match=r"nothing arrived for 0\.25 seconds"):
        await fetch(url, parse_address(url), tmp_path, Transfer(read_timeout=0.05))
    with pytest.raises(DownloadFailed, match=r"it took longer than 0\.3 seconds"):
        await fetch(url, parse_address(url), tmp_path, Transfer(total_timeout=0.3))
    task = asyncio.create_task(fetch(url, parse_address(url), tmp_path))
    await until(fetchers)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert fetchers() == []


async def test_names_in_a_folder_are_listed_once(bucket):
    listing = Listing("s3://models/store")
    result = await asyncio.gather(*(listing.names() for _ in range(5)))

    assert result == [["deep/", "x.mar"]] * 5
    bucket.put("store/new.mar", b"n")
    assert await listing.names() == result[0]


locate = partial(sources.locate, stores={"s3": Stores()}, download=download)


async def test_signed_download_uses_the_servers_credentials(bucket, tmp_path):
    """With ``s3_sse_kms`` the server's credentials sign the download of an http(s) URL of S3."""
    (tmp_path / "store").mkdir()
    url, signed = f"{bucket.url}/store/x.mar", Transfer(signed=True)
    with pytest.raises(DownloadFailed):
        await locate(url, tmp_path / "store", allowing(".*"), tmp_path)
    result = await locate(url, tmp_path / "store", allowing(".*"), tmp_path, signed)

    assert result.path == result.downloaded == tmp_path / "store" / "x.mar"
    assert result.path.stat().st_size == 9 << 20
    with pytest.raises(ModelNotFound, match="does not match any"):
        await locate(url, tmp_path / "store", UrlPolicy(), tmp_path, signed)
    with pytest.raises(ModelNotFound, match="s3_sse_kms=true needs an allowed_urls in the configuration"):
        await locate(
            "https://models.s3.amazonaws.com/x.mar", tmp_path / "store", UrlPolicy(), tmp_path, signed
        )
    with pytest.raises(BadRequest, match="is not a URL of S3"):
        await locate("https://example.com/x.mar", tmp_path / "store", allowing(".*"), tmp_path, signed)


async def test_clients_need_allowed_urls(tmp_path):
    """An operator's models need no ``allowed_urls``, but clients' do; a model store has plain names."""
    url = "s3://models/store/x.mar"
    with pytest.raises(ModelNotFound, match="s3:// needs an allowed_urls in the configuration"):
        await locate(url, tmp_path, UrlPolicy(), tmp_path)
    result = await locate(url, tmp_path, UrlPolicy(), tmp_path, trusted=True)

    assert result.path.stat().st_size == 9 << 20
    result.release()
    with pytest.raises(ModelNotFound, match=r"^Model not found at: \.$"):
        await locate(".", "s3://models/store", UrlPolicy(), tmp_path)
    with pytest.raises(ModelNotFound, match="Model store has not been configured"):
        await locate("https://example.com/x.mar", "s3://models/store", allowing(".*"), tmp_path)
