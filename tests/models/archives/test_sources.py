from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.archives.conftest import allowing

from modelserver.errors import BadRequest, InternalError, ModelNotFound
from modelserver.ext.files.extension import make_network
from modelserver.ext.stores.extension import download
from modelserver.extension import Host
from modelserver.models.archives.incoming import Transfer
from modelserver.models.archives.sources import Located, locate
from modelserver.models.archives.store import ModelStore
from modelserver.models.archives.urls import UrlPolicy

DEFAULT = UrlPolicy()
ANY = allowing(".*")
network = partial(locate, policy=DEFAULT, network=make_network)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    (folder / "mine" / "MAR-INF").mkdir(parents=True)
    (folder / "x.mar").write_bytes(b"x")
    return folder


class Shelf:
    """An object store whose archives are all the same file."""

    async def fetch(self, url, source, workdir, transfer):
        return Path(source.rpartition("/")[2]), None


async def test_each_object_store_has_its_scheme(store):
    """None is asked for another's, and a client needs the operator's word for any (F62)."""
    names = ModelStore(None)
    registry = SimpleNamespace(builder=SimpleNamespace(store=names))
    host = Host(SimpleNamespace(settings=None, registry=registry), store, *(None,) * 2)
    for scheme in ("shelf", "other"):
        host.fetch(scheme, Shelf())
    url = "shelf://a/x.mar"
    for policy, is_trusted in ((ANY, False), (DEFAULT, True)):
        located = await locate(url, None, policy, store, trusted=is_trusted, stores=names.remote)
        assert located == Located(url, Path("x.mar"))

    assert (names.is_remote(url), names.is_remote("s3://a/x.mar")) == (True, False)
    with pytest.raises(ModelNotFound, match="shelf:// needs an allowed_urls in the configuration"):
        await locate(url, None, DEFAULT, store, stores=names.remote)
    with pytest.raises(ModelNotFound, match="no such object store"):
        await locate("x.mar", "s3://models", DEFAULT, store, stores=names.remote)


async def message(url, store, policy=DEFAULT):
    """The text of the 404 that ``url`` gets."""
    with pytest.raises(ModelNotFound) as caught:
        await locate(url, store, policy, Path("unused"), stores={"s3": Shelf()}, download=download)
    assert caught.value.status == 404
    return caught.value.message


async def test_names_are_read_from_the_store(store, monkeypatch):
    """A file name, also behind a path that TorchServe ignores, is found in the model store."""
    for url in ("x.mar", "sub/x.mar", str(store / "x.mar"), "/elsewhere/x.mar"):
        assert await locate(url, store, DEFAULT, store) == Located(url, store / "x.mar")

    for url in ("mine", "mine/", str(store / "mine"), (store / "mine").as_uri()):
        assert await locate(url, store, DEFAULT, store) == Located(url, store / "mine")

    assert (await locate("x.mar", store, ANY, store)).downloaded is None

    (store / "deep" / "model").mkdir(parents=True)
    monkeypatch.chdir(store.parent)
    assert (await locate("store/deep/model", Path("store"), DEFAULT, store)).path == store / "deep" / "model"


async def test_nested_directory_needs_its_path(store):
    (store / "deep" / "model").mkdir(parents=True)

    assert (
        await locate(str(store / "deep" / "model"), store, DEFAULT, store)
    ).path == store / "deep" / "model"
    assert await message("model", store) == "Model not found at: model"


async def test_refusals_have_the_texts_of_the_reference(store):
    """Each refusal has TorchServe's status and words (reference 5.2)."""
    assert await message("", store) == "empty url"
    assert await message("../x.mar", store) == "Relative path is not allowed in url: ../x.mar"
    assert await message("https://h/a/../x.mar", store, ANY) == (
        "Relative path is not allowed in url: https://h/a/../x.mar"
    )
    assert await message("none.mar", store) == "Model not found at: none.mar"
    for url in ("x.mar", "https://h/x.mar"):
        assert await message(url, None, ANY) == "Model store has not been configured."
    assert await message("abfs://bucket/x.mar", store) == "Model not found at: abfs://bucket/x.mar"
    assert await message("gopher://h/x.mar", store, ANY) == "Model not found at: gopher://h/x.mar"
    only = allowing("https://good.com/.*")
    for url in ("https://evil.com/x.mar", "s3://good.com/x.mar", "HTTP://good.com/x.mar", "file:///x.mar"):
        assert await message(url, store, only) == f"Given URL {url} does not match any allowed URL(s)"


@pytest.mark.parametrize(
    "url",
    ["%2e%2e/x.mar", "%252e%252e/x.mar", "..", "mine/..", "file:///store/%2e%2e/x.mar", "torchvision://.."],
)
async def test_relative_paths_are_refused_first(store, url):
    """F12: '..' is refused in every kind of URL, percent-encoded too."""
    assert await message(url, store, ANY) == f"Relative path is not allowed in url: {url}"


@pytest.mark.parametrize("url", [".", "/", "./", "a\0b", "x" * 5000, "http:/x", "x.mar/", "mine\\", "~"])
async def test_odd_names_are_refused(store, url):
    """F12: names that are no names are a 404, and the model store itself is no model."""
    if url == "x.mar/":
        assert (await locate(url, store, DEFAULT, store)).path == store / "x.mar"
    else:
        assert (await message(url, store)).startswith(f"Model not found at: {url}")


@pytest.mark.parametrize("policy", [DEFAULT, ANY])
async def test_what_clients_name_stays_in_the_store(store, tmp_path, policy):
    """F62: a path of the machine, or a name that is a loop of links, is not found."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "secret.mar").write_bytes(b"s")
    (store / "loop").symlink_to(store / "loop")

    assert await message((tmp_path / "outside").as_posix(), store, policy) == (
        f"Model not found at: {tmp_path}/outside: it is outside the model store, "
        "where only --models and load_models may lead"
    )
    assert (
        await message(f"{tmp_path}/secret.mar", store, policy) == f"Model not found at: {tmp_path}/secret.mar"
    )
    assert await message("loop", store, policy) == "Model not found at: loop"


async def test_links_of_and_within_the_store_are_followed(store, tmp_path):
    (tmp_path / "shared.mar").write_bytes(b"s")
    (tmp_path / "folder").mkdir()
    (store / "link.mar").symlink_to(tmp_path / "shared.mar")
    (store / "linked").symlink_to(tmp_path / "folder")

    for url in ("link.mar", (store / "link.mar").as_uri()):
        assert (await locate(url, store, DEFAULT, store)).path == tmp_path / "shared.mar"
    for url in ("linked", str(store / "linked"), (store / "linked").as_uri()):
        assert (await locate(url, store, DEFAULT, store)).path == tmp_path / "folder"

    (store / "alias.mar").symlink_to("x.mar")
    (tmp_path / "linked-store").symlink_to(store)
    assert (await locate("alias.mar", tmp_path / "linked-store", DEFAULT, store)).path == store / "x.mar"


async def test_what_the_operator_names_may_lie_anywhere(store, tmp_path, monkeypatch):
    (tmp_path / "opt" / "model").mkdir(parents=True)
    (tmp_path / "opt" / "own.mar").write_bytes(b"o")
    monkeypatch.chdir(store)
    for url, path in (
        (f"{tmp_path}/opt/model", tmp_path / "opt" / "model"),
        (f"{tmp_path}/opt/own.mar", tmp_path / "opt" / "own.mar"),
        ((tmp_path / "opt" / "own.mar").as_uri(), tmp_path / "opt" / "own.mar"),
        ("../opt/model", tmp_path / "opt" / "model"),
        (str(tmp_path / "opt" / "mine"), store / "mine"),
    ):
        assert await locate(url, store, DEFAULT, store, trusted=True) == Located(url, path)
    with pytest.raises(ModelNotFound, match=r"^Model not found at: \.\./opt/none$"):
        await locate("../opt/none", store, DEFAULT, store, trusted=True)


async def test_only_public_hosts_are_reached_by_default(store):
    """F62: without allowed_urls a public host is reached and a private one is not."""

    async def resolve(host, _port):
        return ["8.8.8.8" if host == "public.example" else "192.168.1.1"]

    async def content():
        yield b"new"

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content()))
    network = Transfer(resolve=resolve, transport=transport)

    located = await locate(
        "https://public.example/new.mar", store, DEFAULT, store, network, download=download
    )
    with pytest.raises(ModelNotFound, match="does not match any allowed URL"):
        await locate("https://private.example/other.mar", store, DEFAULT, store, network, download=download)

    assert located == Located(located.url, store / "new.mar", downloaded=store / "new.mar")
    assert located.path.read_bytes() == b"new"
    assert not (store / "other.mar").exists()


async def test_file_url_copies_a_file_and_uses_a_directory_in_place(store, tmp_path):
    (tmp_path / "my new.mar").write_bytes(b"new")
    url = (tmp_path / "my new.mar").as_uri()

    assert "file:// needs an allowed_urls" in await message(url, store, DEFAULT)
    located = await locate(url, store, ANY, store)

    assert located == Located(url, store / "my new.mar", downloaded=store / "my new.mar")
    assert located.path.read_bytes() == b"new"

    (tmp_path / "outside").mkdir()
    url = (tmp_path / "outside").as_uri()

    assert "does not match any allowed URL" in await message(url, store, DEFAULT)
    assert await locate(url, store, ANY, store) == Located(url, tmp_path / "outside")


@pytest.mark.parametrize(
    "url", ["file://host/etc", "file://[x", "file:///none/x.mar", "file://", "file:///dev/zero"]
)
async def test_file_url_of_nothing_is_refused(store, url):
    """F62: a device or pipe is never opened."""
    assert await message(url, store, ANY) == f"Model not found at: {url}"


async def test_torchvision_url_becomes_a_model_directory(store, tmp_path):
    """A malformed torchvision URL is a 400; no place to write is a 500 (F56)."""
    located = await network("torchvision://resnet18?weights=random", None, workdir=tmp_path / "work")

    assert (located.temporary, located.downloaded) == (True, None)
    assert located.path.parent == tmp_path / "work"
    assert (located.path / "MAR-INF" / "MANIFEST.json").is_file()

    with pytest.raises(BadRequest, match="allowed are weights and seed"):
        await network("torchvision://resnet18?wieghts=random", store, workdir=tmp_path)
    with pytest.raises(InternalError, match=r"^Failed to save model: torchvision://resnet18: "):
        await network("torchvision://resnet18", store, workdir=store / "x.mar")


async def test_torchvision_weights_lie_in_the_store(store, tmp_path):
    """F62: a weights file must lie in the model store, itself or as a link."""
    (store / "w.pth").write_bytes(b"w")
    (tmp_path / "s.pth").write_bytes(b"s")
    (store / "linked.pth").symlink_to(tmp_path / "s.pth")

    located = await network("torchvision://resnet18?weights=w.pth", store, workdir=tmp_path / "work")

    assert str(store / "w.pth") in (located.path / "model-config.yaml").read_text()
    linked = await network("torchvision://resnet18?weights=linked.pth", store, workdir=tmp_path / "work")
    assert str(tmp_path / "s.pth") in (linked.path / "model-config.yaml").read_text()
    for name in ("s.pth", "none.pth"):
        with pytest.raises(ModelNotFound, match=rf": {name} is not in the model store"):
            await network(f"torchvision://resnet18?weights={name}", store, workdir=tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30) | st.text("./x.mar%2e~\\:", max_size=12))
async def test_any_name_stays_in_the_store(store, url):
    """F12, F70: whatever the name, it is refused in order or lies inside of the model store."""
    try:
        located = await locate(url, store, DEFAULT, store)
    except (BadRequest, ModelNotFound):
        return
    assert store in located.path.parents
