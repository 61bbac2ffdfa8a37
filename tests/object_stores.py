"""Servers on free ports: S3 by moto, Google's storage by gcp-storage-emulator, a small hub and a small Azure.

What they store is written over plain HTTP.
"""

import base64
import contextlib
import hashlib
import json
import logging
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx

Answer = tuple[int, bytes, dict[str, str]]

_LONG_AGO = "Mon, 01 Jan 2024 00:00:00 GMT"
SECRETS = ("AKIAOBJECTSTORES", "verysecretkey", "hf_verysecrettoken")


class Bucket:
    """A bucket with ``put`` for its objects; ``variables`` lead the libraries to it."""

    def __init__(self, url: str, variables: dict[str, str]) -> None:
        self.url = url
        self.variables = variables

    def put(self, key: str, content: bytes, **headers: str) -> None:
        # Without it, moto sees another account, which may not replace objects.
        signed = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={SECRETS[0]}/20260101/us-east-1/s3/aws4_request"
        }
        headers = {**signed, **headers}
        httpx.put(f"{self.url}/{key}", content=content, headers=headers).raise_for_status()


@contextlib.contextmanager
def s3(name: str = "models") -> Iterator[Bucket]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    httpx.put(f"{url}/{name}").raise_for_status()
    try:
        yield Bucket(
            f"{url}/{name}",
            {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": SECRETS[0],
                "AWS_SECRET_ACCESS_KEY": SECRETS[1],
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        )
    finally:
        # moto's objects live as long as the process.
        httpx.post(f"{url}/moto-api/reset")
        server.stop()


@contextlib.contextmanager
def denying(bucket: Bucket) -> Iterator[None]:
    """Until the end, the credentials are not allowed anything."""
    root = bucket.variables["AWS_ENDPOINT_URL"]
    httpx.post(f"{root}/moto-api/reset-auth", content="0").raise_for_status()
    try:
        yield
    finally:
        httpx.post(f"{root}/moto-api/reset-auth", content="inf").raise_for_status()


class GoogleBucket(Bucket):
    def put(self, key: str, content: bytes, **headers: str) -> None:
        root, _, name = self.url.rpartition("/")
        url = f"{root}/upload/storage/v1/b/{name}/o"
        requested = {"uploadType": "media", "name": key}
        httpx.post(url, params=requested, content=content, headers=headers).raise_for_status()


@contextlib.contextmanager
def google(name: str = "models") -> Iterator[GoogleBucket]:
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=name)
    server.start()
    try:
        port = server._api._httpd.server_port
        url = f"http://127.0.0.1:{port}"
        yield GoogleBucket(f"{url}/{name}", {"STORAGE_EMULATOR_HOST": url})
    finally:
        server.stop()


class Hub:
    """A hub with one repository: what huggingface_hub asks of it. ``tokens`` are those that clients sent.

    ``gated``: nobody may have its files.
    """

    def __init__(self) -> None:
        self.repository = "owner/tiny"
        self.files: dict[str, bytes] = {}
        self.digests: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.gated = False
        self.url = ""

    @property
    def variables(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": SECRETS[2], "HF_HUB_DISABLE_TELEMETRY": "1"}

    @property
    def commit(self) -> str:
        """Adds a commit, as if each state of the files were one."""
        state = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.files.items())
        return hashlib.sha1(json.dumps(state).encode()).hexdigest()

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """Status, body and headers of a GET."""
        api, root = f"/api/models/{self.repository}", f"/{self.repository}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            if path != api and path.rpartition("/")[2] not in ("main", self.commit):
                return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
            siblings = [{"rfilename": name, "size": len(data)} for name, data in self.files.items()]
            info = {"id": self.repository, "sha": self.commit, "siblings": siblings}
            return 200, json.dumps(info).encode(), {}
        if path.startswith(f"{api}/tree/{self.commit}"):
            folder = path.removeprefix(f"{api}/tree/{self.commit}").strip("/")
            is_flat = query.get("recursive", "").lower() == "true"
            return 200, json.dumps(self._tree(folder, is_flat=is_flat)).encode(), {}
        if path.startswith(root):
            commit, _, name = path.removeprefix(root).partition("/")
            if self.gated:
                return 403, b"{}", {"X-Error-Code": "GatedRepo"}
            if commit == self.commit and name in self.files:
                etag = hashlib.sha1(self.files[name]).hexdigest()
                return 200, self.files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": self.commit}
            return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}

    def _tree(self, folder: str, *, is_flat: bool = False) -> list[dict[str, object]]:
        entries: dict[str, dict[str, object]] = {}
        start = f"{folder}/" if folder else ""
        for name, data in self.files.items():
            if not name.startswith(start):
                continue
            first, deeper, _ = name.removeprefix(start).partition("/")
            if is_flat:
                first = name
            elif deeper:
                entries[first] = {"type": "directory", "path": start + first, "size": 0, "oid": "0" * 40}
                continue
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entries[first] = {"type": "file", "path": name, "size": len(data), "oid": blob}
            if name.endswith(".mar"):
                digest = self.digests.get(name) or hashlib.sha256(data).hexdigest()
                entries[first]["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 130}
        return list(entries.values())


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


class Container:
    """A container of Azure's blobs: the requests that adlfs sends to it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.url = ""

    @property
    def variables(self) -> dict[str, str]:
        key = base64.b64encode(SECRETS[1].encode()).decode()
        account = (
            f"DefaultEndpointsProtocol=http;AccountName=acct;AccountKey={key};BlobEndpoint={self.url}/acct;"
        )
        return {"AZURE_STORAGE_CONNECTION_STRING": account}

    def answer(self, path: str, query: Mapping[str, str], headers: Message) -> Answer:
        """Status, body and headers of a GET or HEAD."""
        if query.get("comp") == "list":
            listing = self._list(query.get("prefix", ""), query.get("delimiter"))
            return 200, listing, {"Content-Type": "application/xml"}
        content = self.blobs.get(path.removeprefix("/acct/models/"))
        if content is None:
            return 404, b"", {"x-ms-error-code": "BlobNotFound"}
        if headers.get("If-Match") not in (None, etag := f'"{zlib.crc32(content)}"'):
            return 412, b"", {"x-ms-error-code": "ConditionNotMet"}
        headers = {"ETag": etag, "Last-Modified": _LONG_AGO, "x-ms-blob-type": "BlockBlob"}
        if not headers.get("x-ms-range"):
            headers["Content-MD5"] = _md5(content)
        return 200, content, headers

    def _list(self, prefix: str, delimiter: str | None) -> bytes:
        entries: dict[str, str] = {}
        for name, content in self.blobs.items():
            if not name.startswith(prefix):
                continue
            first, deeper, _ = name.removeprefix(prefix).partition(delimiter or "\n")
            if deeper:
                entries[first] = f"<BlobPrefix><Name>{prefix}{first}/</Name></BlobPrefix>"
                continue
            entries[first] = (
                f"<Blob><Name>{name}</Name><Properties><Content-Length>{len(content)}</Content-Length>"
                f"<Etag>{zlib.crc32(content)}</Etag><Content-MD5>{_md5(content)}</Content-MD5>"
                f"<Last-Modified>{_LONG_AGO}</Last-Modified><BlobType>BlockBlob</BlobType>"
                "</Properties></Blob>"
            )
        result = "".join(entries.values())
        blobs = f"<Blobs>{result}</Blobs><NextMarker/>"
        return f"<EnumerationResults ContainerName='models'>{blobs}</EnumerationResults>".encode()


@contextlib.contextmanager
def hub() -> Iterator[Hub]:
    made = Hub()
    with _listening(made, lambda path, query, _: made.answer(path, query)):
        yield made


@contextlib.contextmanager
def azure() -> Iterator[Container]:
    made = Container()
    with _listening(made, made.answer):
        yield made


@contextlib.contextmanager
def _listening(
    made: Hub | Container, answer: Callable[[str, Mapping[str, str], Message], Answer]
) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            made.tokens.add(self.headers.get("Authorization", ""))
            url = urlsplit(self.path)
            status, body, headers = answer(unquote(url.path), dict(parse_qsl(url.query)), self.headers)
            span = self.headers.get("Range") or self.headers.get("x-ms-range") or ""
            if status == 200 and span.startswith("bytes="):
                first, _, last = span.removeprefix("bytes=").partition("-")
                headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(body)}"}
                status, body = 206, body[int(first) : int(last) + 1]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
