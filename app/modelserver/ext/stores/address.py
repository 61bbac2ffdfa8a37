"""What a URL of an object store names.

Only a bucket and a key: nothing in a URL chooses the endpoint, the account, the credentials or options of the
libraries, which are the operator's and come from the environment of the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from modelserver.errors import BadRequest
from modelserver.models.archives.urls import leaves_its_place, scheme

PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "hf": "huggingface_hub"}
"""The schemes, each with the package that reads it."""

_KINDS_OF_HUB: Final = ("datasets", "spaces", "models", "kernels", "buckets", "api")
_BUCKETS: Final = {
    "s3": re.compile(r"[A-Za-z0-9][\w.-]{1,61}[A-Za-z0-9]"),
    "gs": re.compile(r"[a-z0-9][\w.-]{1,220}[a-z0-9]"),
    "az": re.compile(r"\$root|\$web|[a-z0-9](-?[a-z0-9]){2,62}"),
    "hf": re.compile(rf"(?!(?:{'|'.join(_KINDS_OF_HUB)})/)\w[\w.-]*/\w[\w.-]*(@[\w.-]+)?"),
}
_FORM: Final = {
    **dict.fromkeys(PACKAGES, "BUCKET/KEY"),
    "az": "CONTAINER/NAME",
    "hf": "OWNER/REPOSITORY[@REVISION]/FILE",
}
# `::` chains file systems of fsspec, `?` and `#` are options and versions, the others patterns.
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\?#*\[\]{}]|::")
_LONGEST: Final = 1024
_AMAZON: Final = re.compile(
    r"(?:(.+)\.)?s3(?:[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d))?\.amazonaws\.com(?:\.cn)?"
)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An object or a folder; ``key`` is empty for a whole bucket. ``region`` is "" for the library's own."""

    scheme: str
    bucket: str
    key: str = ""
    region: str = ""

    @property
    def path(self) -> str:
        """For fsspec."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    @property
    def name(self) -> str:
        """The last part, a file name."""
        return self.path.rpartition("/")[2]


def parse_address(url: str) -> StoreAddress:
    """Raises ``BadRequest`` for a URL that is not of the plain form, or names no bucket that there can be."""
    kind, rest = scheme(url) or "", url.partition("://")[2]
    if kind not in PACKAGES:
        raise BadRequest(f"{url}: one of {', '.join(f'{name}://' for name in PACKAGES)} is needed")
    parts = rest.removesuffix("/").split("/")
    split = 2 if kind == "hf" else 1
    bucket, key = "/".join(parts[:split]), "/".join(parts[split:])
    if _BUCKETS[kind].fullmatch(bucket) is None or ".." in bucket:
        raise BadRequest(f"{url}: {kind}://{_FORM[kind]} is needed")
    _check_key(url, key)
    return StoreAddress(kind, bucket, key)


def signed_address(url: str, environment: Mapping[str, str]) -> StoreAddress:
    """The object of an http(s) URL of S3, for a download that is signed (``s3_sse_kms``).

    The host is Amazon's, or the endpoint in ``AWS_ENDPOINT_URL``, whose URLs begin with the bucket. Raises
    ``BadRequest`` for another URL.
    """
    endpoint = next((environment[name].rstrip("/") for name in _ENDPOINTS if environment.get(name)), "")
    if endpoint and url.startswith(f"{endpoint}/"):
        return _signed(url, url.removeprefix(f"{endpoint}/"))
    host, _, path = url.partition("://")[2].partition("/")
    match = _AMAZON.fullmatch(host)
    if match is None or scheme(url) != "https":
        raise BadRequest(
            f"s3_sse_kms=true: {url} is not a URL of S3, https://BUCKET.s3.REGION.amazonaws.com/KEY"
        )
    return _signed(url, f"{match[1]}/{path}" if match[1] else path, match[2] or "")


def _signed(url: str, path: str, region: str = "") -> StoreAddress:
    bucket, _, key = path.partition("/")
    if _BUCKETS["s3"].fullmatch(bucket) is None or not key:
        raise BadRequest(f"s3_sse_kms=true: {url} does not name a bucket and a key")
    _check_key(url, key)
    key = unquote(key)
    _check_key(url, key)
    return StoreAddress("s3", bucket, key, region)


def _check_key(url: str, key: str) -> None:
    """Raises ``BadRequest``; keys that lead elsewhere, or mean something to fsspec, are refused."""
    if _FORBIDDEN.search(key):
        raise BadRequest(f"{url}: a plain name is needed, without spaces, '::' and any of \\?#*[]{{}}")
    parts = key.split("/") if key else []
    if leaves_its_place(key) or "." in parts or "" in parts:
        raise BadRequest(f"{url}: '..', '.' and empty parts are not allowed in the name")
    if len(key.encode()) > _LONGEST:
        raise BadRequest(f"{url[:100]}…: its name is longer than {_LONGEST} bytes")
