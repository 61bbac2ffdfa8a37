"""Objects of the real libraries, from real servers."""

import hashlib
import sys

import pytest
from tests.object_stores import SECRETS, azure, denying, google, hub, s3

from modelserver.errors import DownloadFailed, InternalError
from modelserver.ext.stores.address import parse_address
from modelserver.ext.stores.stores import Changed, Item, is_missing, open_store, reason_of

# Warnings of the libraries themselves, about connections that are closed with the process.
pytestmark = [
    pytest.mark.slow,  # needs the libraries of object stores, and servers of them
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def opened(url):
    return open_store(parse_address(url))


@pytest.fixture(scope="module")
def amazon():
    with pytest.MonkeyPatch.context() as patch, s3() as bucket:
        for name, value in bucket.variables.items():
            patch.setenv(name, value)
        bucket.put("store/x.mar", b"first")
        bucket.put("store/deep/a.py", b"a")
        bucket.put("store/deep/sub/b.py", b"bb")
        bucket.put("store/deep/", b"")
        yield bucket


@pytest.fixture(scope="module")
def googles():
    with pytest.MonkeyPatch.context() as patch, google() as bucket:
        for name, value in bucket.variables.items():
            patch.setenv(name, value)
        bucket.put("store/x.mar", b"first")
        bucket.put("store/deep/a.py", b"a")
        yield bucket


def test_object_of_s3_is_read_in_ranges(amazon):
    """It is known by size, ETag and MD5, and read in ranges."""
    store = opened("s3://models/store/x.mar")
    (item,) = store.items()

    assert (item.name, item.size) == ("", 5)
    assert item.checksum == ("md5", hashlib.md5(b"first").hexdigest())
    assert store.read(item, 1, 4) == b"irs"
    assert store.endpoint == amazon.variables["AWS_ENDPOINT_URL"]

    assert amazon
    items = opened("s3://models/store/deep").items()

    assert [(item.name, item.size) for item in items] == [("a.py", 1), ("sub/b.py", 2)]
    assert sorted(opened("s3://models/store").names()) == [("deep", True), ("x.mar", False)]


def test_changed_or_encrypted_object_of_s3_is_not_vouched_for(amazon):
    """One that was replaced or removed is not read as the old one. An encrypted one's ETag is no MD5."""
    amazon.put("changes", b"before")
    store = opened("s3://models/changes")
    (item,) = store.items()
    amazon.put("changes", b"after!")

    with pytest.raises(Changed):
        store.read(item, 0, 6)
    assert not store.has_still([item])

    amazon.put("kms", b"secret", **{"x-amz-server-side-encryption": "aws:kms"})
    store = opened("s3://models/kms")

    assert not store.vouches_for(store.items()[0])
    assert opened("s3://models/store/x.mar").vouches_for(Item("", "models/store/x.mar", 5, ""))


@pytest.mark.parametrize("url", ["s3://models/none", "s3://no-such-bucket/x.mar"])
def test_missing_object_of_s3_is_known_to_be_missing(amazon, url):
    assert amazon
    with pytest.raises(OSError) as caught:  # noqa: PT011 - whichever the library has
        opened(url).items()
    assert is_missing(caught.value)


def test_reason_names_no_key_and_quotes_nothing(amazon):
    """Texts of libraries may have signatures in URLs; codes and names of errors do not."""
    with denying(amazon), pytest.raises(OSError) as caught:  # noqa: PT011
        opened("s3://models/store/x.mar").items()

    assert reason_of(caught.value) == "the server's credentials do not allow it"
    assert not is_missing(caught.value)

    error = OSError("https://host/x?sig=secret")
    error.__cause__ = TimeoutError("key=secret")

    assert reason_of(error) == "the store could not be read: OSError, caused by TimeoutError"
    assert reason_of(Changed()) == "it was changed or removed while it was read"


def test_objects_of_google_are_read(googles):
    """They are known by generation and MD5, and one with another generation is another."""
    store = opened("gs://models/store/x.mar")
    (item,) = store.items()

    assert item.size == 5
    assert item.checksum == ("md5", hashlib.md5(b"first").hexdigest())
    assert store.read(item, 1, 4) == b"irs"
    assert sorted(opened("gs://models/store").names()) == [("deep", True), ("x.mar", False)]
    assert [each.name for each in opened("gs://models/store/deep").items()] == ["a.py"]
    assert store.has_still([item])
    googles.put("store/x.mar", b"other")
    assert not store.has_still([item])


@pytest.fixture
def repository(monkeypatch):
    """The library reads its environment when it is imported."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with hub() as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        path = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", made.url + path)
        monkeypatch.setenv("HF_TOKEN", SECRETS[2])
        made.files = {"x.mar": b"first", "config/a.json": b"{}"}
        yield made


def test_files_of_a_hub_are_read(repository):
    """Large files are known by SHA-256, others by the id of their blob; all are of one commit."""
    store = opened("hf://owner/tiny@main/x.mar")
    (item,) = store.items()

    assert item.checksum == ("sha256", hashlib.sha256(b"first").hexdigest())
    assert repository.commit in item.path
    assert store.read(item, 1, 4) == b"irs"
    assert sorted(opened("hf://owner/tiny").names()) == [("config", True), ("x.mar", False)]
    (small,) = opened("hf://owner/tiny/config").items()
    assert (small.name, small.checksum) == ("a.json", ("git", hashlib.sha1(b"blob 2\0{}").hexdigest()))
    assert f"Bearer {SECRETS[2]}" in repository.tokens
    repository.files["x.mar"] = b"other"
    with pytest.raises(Changed):
        store.read(item, 0, 5)


@pytest.mark.parametrize("name", ["owner/tiny/none", "owner/none/x.mar", "owner/tiny@gone/x.mar"])
def test_missing_file_of_a_hub_is_known_to_be_missing(repository, name):
    assert repository
    with pytest.raises(OSError) as caught:  # noqa: PT011
        opened(f"hf://{name}").items()
    assert is_missing(caught.value)


def test_blobs_of_azure_are_read(monkeypatch):
    """They are known by ETag and MD5; a blob with another ETag is not read."""
    with azure() as container:
        for name, value in container.variables.items():
            monkeypatch.setenv(name, value)
        container.blobs = {"store/x.mar": b"first", "store/deep/a.py": b"a"}
        store = opened("az://models/store/x.mar")
        (item,) = store.items()

        assert (item.size, item.checksum) == (5, ("md5", hashlib.md5(b"first").hexdigest()))
        assert store.read(item, 1, 4) == b"irs"
        assert store.has_still([item])
        assert sorted(opened("az://models/store").names()) == [("deep", True), ("x.mar", False)]
        (other,) = opened("az://models/store/deep").items()
        assert (other.name, other.checksum) == ("a.py", ("md5", hashlib.md5(b"a").hexdigest()))
        container.blobs["store/x.mar"] = b"other"
        assert not store.has_still([item])
        with pytest.raises(Changed):
            store.read(item, 0, 5)
        with pytest.raises(FileNotFoundError):
            opened("az://models/none").items()


def test_what_is_missing_is_named(monkeypatch):
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(DownloadFailed, match="AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING"):
        opened("az://models/x.mar")

    monkeypatch.setitem(sys.modules, "adlfs", None)

    with pytest.raises(InternalError, match=r"az:// needs adlfs, .* pip install fsspec adlfs"):
        opened("az://container/x.mar")
