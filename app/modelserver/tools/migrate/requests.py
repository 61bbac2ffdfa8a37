"""The requests for both servers: some that suit the models, a folder of bodies, or a recording."""

from __future__ import annotations

import json
import mimetypes
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote

from modelserver.ext.recording.file import RecordedRequest, read, request_of
from modelserver.tools.migrate import grpc_calls
from modelserver.tools.migrate.archives import Archive
from modelserver.tools.migrate.calls import MigrationError, Port, Probe
from modelserver.tools.migrate.servers import ServedVersion

Remark: TypeAlias = "Callable[[str], object]"
BUILT_IN: Final = "builtin"
INDEX: Final = "requests.json"
RECORDING: Final = ".msr"
NOBODY: Final = "model-that-nobody-has"
_PORTS: Final = ("inference", "management", "metrics")
_OF_CONNECTION: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
)
_OCTETS: Final = "application/octet-stream"
_JSON: Final = "application/json"
_PICTURES: Final = frozenset({"image_classifier", "object_detector", "image_segmenter", "densenet_handler"})


@dataclass(frozen=True, slots=True)
class Subject:
    """A model version that both servers have, and its archive if that could be read."""

    version: ServedVersion
    archive: Archive | None = None


def _unsaid(_: str) -> None:
    """Says nothing."""


def requests_of(
    source: str, subjects: Sequence[Subject], envelope: str | None, remark: Remark = _unsaid
) -> list[Probe]:
    """The requests of ``builtin``, a folder, or a recording; with names that tell them apart.

    ``envelope`` is the one of the configuration; ``remark`` is told what is wrong with a recording's end.
    Raises ConfigError and MigrationError with the reason.
    """
    if source == BUILT_IN:
        once: dict[Probe, Probe] = {}  # those without a version are the same for all versions of a model
        models = (call for each in subjects for call in about(each, envelope))
        for call in (*general(), *grpc_calls.general(NOBODY), *models):
            once.setdefault(replace(call, name=""), call)
        return _named(once.values())
    path = Path(source)
    if path.suffix == RECORDING:
        return _named(recorded(path, remark))
    if not path.is_dir():
        raise MigrationError(
            f"--requests={source}: {BUILT_IN}, a folder or a recording ({RECORDING}) is needed"
        )
    return _named(in_folder(path))


def _named(calls: Iterable[Probe]) -> list[Probe]:
    """Numbered where a name is there twice, without headers that are of a connection."""
    seen: dict[str, int] = {}
    numbered = []
    for call in calls:
        seen[call.name] = count = seen.get(call.name, 0) + 1
        name = call.name if count == 1 else f"{call.name} ({count})"
        headers = tuple(header for header in call.headers if header[0].lower() not in _OF_CONNECTION)
        numbered.append(replace(call, name=name, headers=headers))
    return numbered


def changes_state(call: Probe) -> bool:
    """Whether it might change what a server serves, or its tokens."""
    path = call.path.partition("?")[0]
    managed = path.startswith(("/models", "/workflows")) and not path.endswith("/invoke")
    reads = call.method in {"GET", "HEAD", "OPTIONS"}
    return path.startswith("/token") or (managed and not reads)


# The built-in requests: none changes the state of a server


def general() -> Iterator[Probe]:
    """Yields requests that every server can answer."""
    for port, method, path in (
        ("inference", "GET", "/ping"),
        ("inference", "POST", "/ping"),
        ("inference", "OPTIONS", "/"),
        ("inference", "GET", "/api-description"),
        ("inference", "GET", "/nowhere"),
        ("inference", "POST", f"/predictions/{NOBODY}"),
        ("inference", "GET", "/predictions"),
        ("management", "GET", "/models"),
        ("management", "GET", "/models?limit=1"),
        ("management", "GET", f"/models/{NOBODY}"),
        ("management", "OPTIONS", "/"),
        ("management", "GET", "/nowhere"),
        ("metrics", "GET", "/metrics"),
        ("metrics", "GET", "/nowhere"),
    ):
        yield Probe(f"{method} {path} ({port})", cast("Port", port), method, path)


def about(subject: Subject, envelope: str | None) -> Iterator[Probe]:
    """Yields requests for a model: descriptions, and predictions with inputs that suit its handler."""
    version, archive = subject.version, subject.archive
    name, number = quote(version.name, safe=""), quote(version.version, safe="")
    for path in (
        f"/models/{name}",
        f"/models/{name}/{number}",
        f"/models/{name}/all",
        f"/models/{name}/0.0.404",
    ):
        yield Probe(f"GET {path}", "management", "GET", path)
    bodies = inputs(archive.handler if archive is not None else "")
    for kind, content_type, body in bodies:
        for path in (f"/predictions/{name}", f"/predictions/{name}/{number}"):
            yield _post(f"{kind} to {path}", path, content_type, body)
    kind, content_type, body = bodies[0]
    yield _post(f"nothing to /predictions/{name}", f"/predictions/{name}", "", b"")
    yield _post(f"{kind} to an absent version", f"/predictions/{name}/0.0.404", content_type, body)
    yield _post(f"{kind} to be explained", f"/explanations/{name}", content_type, body)
    yield Probe(f"GET /predictions/{name}", "inference", "GET", f"/predictions/{name}")
    yield Probe(f"OPTIONS /predictions/{name}", "inference", "OPTIONS", f"/predictions/{name}")
    yield from grpc_calls.about(version.name, version.version, archive, [body for _, _, body in bodies])
    if envelope in {"kserve", "json"} or (archive is not None and "instances" in archive.places):
        instances = json.dumps({"instances": [instance(archive), instance(archive)]}).encode()
        yield _post(f"instances to {name}", f"/v1/models/{name}:predict", _JSON, instances)
        yield _post(f"instances to /predictions/{name}", f"/predictions/{name}", _JSON, instances)
        yield Probe(f"readiness of {name}", "management", "GET", f"/v1/models/{name}")
    if envelope == "kservev2":
        tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
        tensors = json.dumps({"inputs": [tensor]}).encode()
        yield _post(f"tensors to {name}", f"/v2/models/{name}/infer", _JSON, tensors)


def inputs(handler: str) -> list[tuple[str, str, bytes]]:
    """Kind, content type and body of what suits a handler; of everything if it is not a built-in one."""
    picture = ("a picture", "image/png", png())
    text = ("a text", "text/plain", b"The quick brown fox jumps over the lazy dog.")
    numbers = ("numbers", _JSON, b"[[1.0, 2.0]]")
    if handler in _PICTURES:
        return [picture]
    if handler == "text_classifier":
        return [text]
    if handler == "base_handler":
        return [numbers]
    return [("an object", _JSON, b'{"data": [1.0, 2.0], "text": "a text"}'), text, numbers, picture]


def instance(archive: Archive | None) -> Any:
    """One of a body of V1."""
    return {"data": "a text"} if archive is None or archive.handler != "base_handler" else [1.0, 2.0]


def png(side: int = 64) -> bytes:
    """A picture of a colour gradient: the same bytes with any version of Pillow, as they were recorded."""
    rows = b"".join(
        b"\0" + b"".join(bytes((4 * x % 256, 4 * y % 256, 128)) for x in range(side)) for y in range(side)
    )
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _post(name: str, path: str, content_type: str, body: bytes) -> Probe:
    headers = (("Content-Type", content_type),) if content_type else ()
    return Probe(name, "inference", "POST", path, headers, body)


# A folder


def in_folder(folder: Path) -> list[Probe]:
    """``MODEL/NAME.EXT`` is posted to ``/predictions/MODEL``, with the content type of its extension.

    ``requests.json``, a list of objects, has anything else: ``path`` and, unless they are as usual,
    ``method`` (POST with a body, else GET), ``headers``, ``port`` (``inference``, ``management`` or
    ``metrics``), and ``file`` (a path in the folder) or ``body`` (text). Files that it names are sent as it
    says only.
    """
    index = folder / INDEX
    listed = _listed(folder, index) if index.is_file() else []
    named = {folder / entry["file"] for entry in listed if "file" in entry} | {index}
    files = sorted(path for path in folder.glob("*/*") if path.is_file() and path not in named)
    try:
        calls = [_posted(folder, path) for path in files] + [_of_entry(folder, entry) for entry in listed]
    except OSError as error:
        raise MigrationError(f"{error.filename}: {error.strerror}") from error
    if not calls:
        raise MigrationError(f"--requests={folder}: there are neither MODEL/NAME.EXT nor {INDEX}")
    return calls


def _posted(folder: Path, path: Path) -> Probe:
    relative = path.relative_to(folder).as_posix()
    kind = mimetypes.guess_type(path.name)[0] or _OCTETS
    return _post(relative, f"/predictions/{quote(path.parent.name, safe='')}", kind, path.read_bytes())


def _listed(folder: Path, index: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(index.read_bytes())
    except ValueError as error:
        raise MigrationError(f"{index}: {error}") from error
    if not isinstance(entries, list):
        raise MigrationError(f"{index}: a list of requests is needed")
    for number, entry in enumerate(entries, 1):
        if problem := _problem(folder, entry):
            raise MigrationError(f"{index}, request {number}: {problem}")
    return entries


def _problem(folder: Path, entry: object) -> str:
    if not isinstance(entry, dict) or not str(entry.get("path", "")).startswith("/"):
        return "an object with a path such as /predictions/model is needed"
    if not re.fullmatch(r"[!-~]+", entry["path"]):
        return "spaces and letters beyond ASCII in a path must be written as %20 and so on"
    if unknown := entry.keys() - {"path", "method", "headers", "port", "file", "body"}:
        return f"unknown: {', '.join(sorted(unknown))}"
    if entry.get("port", "inference") not in _PORTS:
        return f"port is one of {', '.join(_PORTS)}"
    headers = entry.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return "headers is an object of texts"
    if not all(isinstance(entry.get(key, ""), str) for key in ("method", "file", "body")):
        return "method, file and body are texts; JSON to send is one too, or a file"
    if "file" in entry and "body" in entry:
        return "either a file or a body is sent"
    if "file" in entry and not (folder / str(entry["file"])).is_file():
        return f"there is no file {entry['file']}"
    return ""


def _of_entry(folder: Path, entry: dict[str, Any]) -> Probe:
    file = entry.get("file")
    body = (folder / file).read_bytes() if file else str(entry.get("body", "")).encode()
    method = str(entry.get("method", "POST" if body else "GET"))
    headers = dict(entry.get("headers", {}))
    if file and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = mimetypes.guess_type(file)[0] or _OCTETS
    port = cast("Port", entry.get("port", "inference"))
    return Probe(f"{method} {entry['path']}", port, method, entry["path"], tuple(headers.items()), body)


# A recording


def recorded(path: Path, remark: Remark = _unsaid) -> list[Probe]:
    """The requests of a recording, in their order and without the time between them; all are of the inference
    ports. Raises ConfigError if the file is no recording that can be read, MigrationError if it has none.
    """
    recording = read(path)
    early = f"{path} ends early, {recording.fault}" if recording.fault else ""
    if not recording.calls:
        raise MigrationError(early or f"{path}: there are no requests")
    if early:
        remark(f"{early}: what was recorded before is asked.")
    return [_of_recording(each) for each in map(request_of, recording.calls)]


def _of_recording(sent: RecordedRequest) -> Probe:
    if sent.method == grpc_calls.METHOD:
        return grpc_calls.of_message(sent.path, sent.headers, sent.body)
    name = f"{sent.method} {sent.path}"
    return Probe(name, "inference", sent.method, sent.path, sent.headers, sent.body)
