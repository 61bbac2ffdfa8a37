"""Models of a hub come into the hub's own cache, in a process of its own."""

import asyncio

import pytest
from tests.models.archives.conftest import allowing
from tests.object_stores import SECRETS, hub

from modelserver.errors import DownloadFailed, InvalidModel, ModelNotFound
from modelserver.ext.stores.extension import Stores
from modelserver.models.archives import sources
from modelserver.models.archives.incoming import Transfer
from modelserver.models.archives.urls import UrlPolicy

pytestmark = pytest.mark.slow  # each fetch imports the hub's library in a process

STORES = {"hf": Stores()}
URL = "hf://owner/tiny"
WEIGHTS = b"w" * (3 << 20)
MODEL = {
    "config.json": b'{"architectures": ["BertModel"]}',
    "model.safetensors": WEIGHTS,
    "onnx/model.safetensors": b"other",
    "1_Pooling/config.json": b"{}",
    "tf_model.h5": b"other",
    "code.py": b"",
}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A hub with a model, and an empty cache."""
    pytest.importorskip("huggingface_hub")
    with hub() as made:
        for name, value in {**made.variables, "HF_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        made.files = dict(MODEL)
        yield made


async def fetched(tmp_path, url=URL, transfer=None):
    policy = allowing("hf://.*")
    located = await sources.locate(url, tmp_path, policy, tmp_path, transfer or Transfer(), stores=STORES)
    assert located.held is None
    return located.path


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


async def test_model_is_fetched_with_progress(repository, tmp_path):
    reports = list[tuple[int, int | None]]()
    folder = await fetched(tmp_path, f"{URL}@main", Transfer(progress=lambda *pair: reports.append(pair)))

    assert folder.is_relative_to(tmp_path / "home")
    assert names(folder) == {"config.json", "model.safetensors", "1_Pooling/config.json"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert reports[-1][0] >= len(WEIGHTS)
    assert f"Bearer {SECRETS[2]}" in repository.tokens
    assert "code.py" in names(await fetched(tmp_path, f"{URL}?trust_remote_code=true"))


async def test_model_in_the_cache_needs_no_hub(repository, tmp_path, monkeypatch):
    folder = await fetched(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await fetched(tmp_path) == folder
    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE is set, and the model is not complete in the"):
        await fetched(tmp_path, "hf://owner/other")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert await fetched(tmp_path) == folder
    with pytest.raises(DownloadFailed, match="the hub cannot be reached, and the model is not complete"):
        await fetched(tmp_path, "hf://owner/other")


@pytest.mark.parametrize(
    ("url", "kind", "problem"),
    [
        ("hf://owner/none", ModelNotFound, "the hub has no such model, or it is private: log in with"),
        ("hf://owner/tiny@gone", ModelNotFound, "it has no revision gone"),
        (URL, DownloadFailed, "it is gated: accept its conditions at http://127.* and log in with"),
    ],
)
async def test_refusal_of_the_hub_is_explained(repository, tmp_path, url, kind, problem):
    repository.gated = True
    with pytest.raises(kind, match=problem) as caught:
        await fetched(tmp_path, url)

    assert SECRETS[2] not in caught.value.message


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (("pytorch_model.bin", "config.json"), "but pytorch_model.bin: a pickle"),
        (("x.gguf", "config.json"), "no weights in safetensors: x.gguf is for llama.cpp"),
        (("x.gguf",), "is not a model: it has no config.json"),
        (("adapter_config.json", "adapter_model.safetensors"), "is an adapter"),
    ],
)
async def test_what_cannot_be_served_is_not_fetched(repository, tmp_path, files, problem):
    repository.files = dict.fromkeys(files, b"{}")
    with pytest.raises(InvalidModel, match=problem):
        await fetched(tmp_path)

    assert names(tmp_path) == set()
    if "pytorch_model.bin" in files:
        folder = await fetched(tmp_path, f"{URL}?trust_remote_code=true")
        assert names(folder) == {"pytorch_model.bin", "config.json"}


async def test_repository_may_still_be_an_archive(repository, tmp_path):
    with pytest.raises(DownloadFailed, match="larger than 1000 bytes"):
        await fetched(tmp_path, transfer=Transfer(max_bytes=1000))
    repository.files = {"MAR-INF/MANIFEST.json": b"{}", "handler.py": b""}
    located = await sources.locate(URL, tmp_path, allowing("hf://.*"), tmp_path, stores=STORES)

    assert located.path.is_file()
    assert located.held is not None
    located.release()


async def test_clients_need_permission(repository, tmp_path):
    """Only operators may name any model; a fetch that is cancelled leaves no process behind."""
    with pytest.raises(ModelNotFound, match="hf:// needs an allowed_urls"):
        await sources.locate(URL, tmp_path, UrlPolicy(), tmp_path, stores=STORES)
    trusted = await sources.locate(URL, tmp_path, UrlPolicy(), tmp_path, trusted=True, stores=STORES)
    assert trusted.path.is_dir()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(fetched(tmp_path), 0.05)
    assert repository.files
