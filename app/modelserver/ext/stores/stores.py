"""The object stores themselves, by fsspec and its file systems; only in the process that fetches.

Each finds out what an object is at one moment (``Item``: size, version, checksum) and reads ranges of exactly
that version, so that an object that is replaced meanwhile is noticed and never mixed.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from modelserver.errors import DownloadFailed, InternalError, ModelNotFound
from modelserver.ext.stores.address import PACKAGES, StoreAddress

_MD5: Final = re.compile("[0-9a-f]{32}")
_MOST_FILES: Final = 10_000
_CHANGED: Final = "it was changed or removed while it was read"
_Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One version of an object.

    ``name`` is that of the file, relative to the folder that was asked for; ``path`` is what the store reads.
    ``checksum`` is the algorithm and the hexadecimal digest, ("", "") if the store knows none.
    """

    name: str
    path: str
    size: int
    version: str
    checksum: tuple[str, str] = ("", "")


class Changed(Exception):
    """The object is not that version any more."""

    def __str__(self) -> str:
        return _CHANGED


class Store(ABC):
    """One kind of store; ``endpoint`` is where it is, for what must not be mistaken for another's.

    Methods raise whatever the libraries raise, and :class:`Changed`; see :func:`reason_of`.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._files = self._open()

    def _open(self) -> Any:
        import fsspec  # noqa: PLC0415

        return fsspec.filesystem(self._address.scheme, skip_instance_cache=True, **self._options())

    def _options(self) -> dict[str, Any]:
        return {}

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Host or account."""

    @abstractmethod
    def _item(self, name: str, info: _Info) -> Item:
        """From what fsspec tells."""

    @abstractmethod
    def _range(self, item: Item, start: int, end: int) -> bytes:
        """Its bytes, if it is still that version."""

    def read(self, item: Item, start: int, end: int) -> bytes:
        """Bytes of a range. Raises :class:`Changed`."""
        try:
            data = self._range(item, start, end)
        except Exception as error:
            is_other = _code_of(error) in ("PreconditionFailed", "412") or _status_of(error) == 412
            if is_missing(error) or is_other:
                raise Changed from error
            raise
        if len(data) != end - start:
            raise Changed
        return data

    def has_still(self, items: list[Item]) -> bool:
        """Whether they are what is there now; not all servers mind the version that is asked for."""
        self._files.invalidate_cache()
        return self.items() == items

    def vouches_for(self, item: Item) -> bool:
        """Whether its checksum is of its content; asked where they differ."""
        return True

    def items(self) -> list[Item]:
        """The object, or all in the folder of that name. Raises ``FileNotFoundError`` if there is neither."""
        path = self._root()
        info = self._files.info(path)
        if info["type"] == "file":
            return [self._item("", info)]
        files = self._files.find(path, detail=True)
        if len(files) > _MOST_FILES:
            raise DownloadFailed(f"there are {len(files)} files in it, {_MOST_FILES} are possible")
        start = path.rstrip("/") + "/"
        return sorted(
            (
                self._item(str(info["name"]).removeprefix(start), info)
                for info in files.values()
                if not str(info["name"]).endswith("/")
            ),
            key=lambda item: item.name,
        )

    def names(self) -> list[tuple[str, bool]]:
        """What is directly in the folder: each name, and whether it is a folder."""
        entries = self._files.ls(self._root(), detail=True)
        kinds = {str(entry["name"]).rstrip("/"): entry["type"] for entry in entries}
        return [(name.rpartition("/")[2], kind == "directory") for name, kind in kinds.items()]

    def _root(self) -> str:
        return self._address.path


class _S3(Store):
    def _options(self) -> dict[str, Any]:
        return {"client_kwargs": {"region_name": self._address.region}} if self._address.region else {}

    @property
    def endpoint(self) -> str:
        return str(self._files.s3.meta.endpoint_url)

    def _item(self, name: str, info: _Info) -> Item:
        etag = str(info["ETag"])
        digest = etag.strip('"')  # an MD5, unless the object came in several parts
        checksum = ("md5", digest) if _MD5.fullmatch(digest) else ("", "")
        return Item(name, str(info["name"]), int(info["size"]), etag, checksum)

    def vouches_for(self, item: Item) -> bool:
        """The ETag of an object that is encrypted with a key of KMS or of the customer is no MD5."""
        head = self._files.call_s3("head_object", **self._named(item.path))
        encryption = str(head.get("ServerSideEncryption", ""))
        return not encryption.startswith("aws:kms") and "SSECustomerAlgorithm" not in head

    def _named(self, path: str) -> dict[str, str]:
        bucket, _, key = path.partition("/")
        return {"Bucket": bucket, "Key": key}

    def _range(self, item: Item, start: int, end: int) -> bytes:
        from fsspec.asyn import sync  # noqa: PLC0415

        async def get() -> bytes:
            span = f"bytes={start}-{end - 1}"
            named = self._named(item.path)
            answer = await self._files._call_s3("get_object", **named, Range=span, IfMatch=item.version)
            async with answer["Body"] as body:
                return bytes(await body.read())

        return bytes(sync(self._files.loop, get))


class _Google(Store):
    @property
    def endpoint(self) -> str:
        return str(self._files._location)

    def _item(self, name: str, info: _Info) -> Item:
        checksum = ("", "")
        if info.get("md5Hash"):
            checksum = ("md5", base64.b64decode(info["md5Hash"]).hex())
        elif info.get("crc32c"):
            checksum = ("crc32c", base64.b64decode(info["crc32c"]).hex())
        version = str(info.get("generation") or info.get("etag") or "")
        return Item(name, str(info["name"]), int(info["size"]), version, checksum)

    def _range(self, item: Item, start: int, end: int) -> bytes:
        return bytes(self._files.cat_file(item.path, start, end, generation=item.version))


class _Azure(Store):
    def _open(self) -> Any:
        try:
            return super()._open()
        except ValueError as error:
            raise DownloadFailed(
                "no account is named: AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING is needed"
            ) from error

    @property
    def endpoint(self) -> str:
        return str(self._files.service_client.primary_hostname)

    def _item(self, name: str, info: _Info) -> Item:
        md5 = (info.get("content_settings") or {}).get("content_md5")
        checksum = ("md5", bytes(md5).hex()) if md5 else ("", "")
        return Item(name, str(info["name"]), int(info["size"]), str(info["etag"]), checksum)

    def _range(self, item: Item, start: int, end: int) -> bytes:
        from azure.core import MatchConditions  # noqa: PLC0415
        from fsspec.asyn import sync  # noqa: PLC0415

        container, _, blob = item.path.partition("/")

        async def get() -> bytes:
            async with self._files.service_client.get_blob_client(container, blob) as client:
                stream = await client.download_blob(
                    start, end - start, etag=item.version, match_condition=MatchConditions.IfNotModified
                )
                return bytes(await stream.readall())

        return bytes(sync(self._files.loop, get))


class _Hub(Store):
    """A revision is a branch, which moves: everything is read from the commit that it is now."""

    def _root(self) -> str:
        address = self._address
        repository, _, revision = address.bucket.partition("@")
        commit = self._files._api.repo_info(repository, revision=revision or None).sha
        return f"{repository}@{commit}" + (f"/{address.key}" if address.key else "")

    @property
    def endpoint(self) -> str:
        return str(self._files.endpoint)

    def _item(self, name: str, info: _Info) -> Item:
        size, stored = int(info["size"]), info.get("lfs")
        checksum = ("sha256", stored["sha256"]) if stored else ("git", str(info["blob_id"]))
        return Item(name, str(info["name"]), size, ":".join(checksum), checksum)

    def _range(self, item: Item, start: int, end: int) -> bytes:
        with self._files.open(item.path, "rb", cache_type="none") as file:
            file.seek(start)
            return bytes(file.read(end - start))

    def has_still(self, items: list[Item]) -> bool:
        """Returns whether the items are unchanged: always, since they belong to a commit."""
        return True


_STORES: Final[dict[str, type[Store]]] = {"s3": _S3, "gs": _Google, "az": _Azure, "hf": _Hub}


def open_store(address: StoreAddress) -> Store:
    """Raises ``InternalError`` if a package is missing, and what the library raises."""
    package = PACKAGES[address.scheme]
    try:
        import_module("fsspec")
        import_module(package)
    except ImportError as error:
        missing = (error.name or package).partition(".")[0]
        raise InternalError(
            f"{address.scheme}:// needs {missing}, which is not installed: "
            f"pip install 'modelserver[sources]', or pip install fsspec {package}"
        ) from error
    return _STORES[address.scheme](address)


def reason_of(error: BaseException) -> str:
    """Why a store could not be read, without the libraries' texts: they may quote URLs with signatures."""
    if isinstance(error, Changed):
        return str(error)
    if isinstance(error, PermissionError) or _status_of(error) in (401, 403):
        return "the server's credentials do not allow it"
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 3:
        chain.append(_code_of(cause) or type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return f"the store could not be read: {', caused by '.join(dict.fromkeys(chain))}"


def missing_error(url: str) -> ModelNotFound:
    """The error if there is neither an object nor a folder."""
    return ModelNotFound(f"Model not found at: {url}")


def is_missing(error: BaseException) -> bool:
    """Whether the store said that there is nothing."""
    return isinstance(error, FileNotFoundError) or _status_of(error) == 404


def _code_of(error: BaseException) -> str:
    """Amazon's name of an error, such as ``NoSuchBucket``."""
    for cause in (error, error.__cause__):
        answer = getattr(cause, "response", None)
        if isinstance(answer, Mapping):
            return re.sub(r"[^\w.-]", "", str(answer.get("Error", {}).get("Code", "")))[:60]
    return ""


def _status_of(error: BaseException) -> int:
    """The HTTP status, 0 if it is none."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "code", "status"):
            status = getattr(source, name, None)
            if isinstance(status, int):
                return status
    return 0
