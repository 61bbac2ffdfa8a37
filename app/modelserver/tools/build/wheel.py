"""The wheel of the modelserver that runs here: the image serves with the same code, whatever it came from."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES: Final = ("modelserver", "modelserver_handlers")
_DESCRIPTION: Final = ("METADATA", "WHEEL", "entry_points.txt")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file


def write_wheel(folder: Path) -> Path:
    """Writes it into the folder. Raises ConfigError if modelserver is not installed."""
    try:
        package = metadata.distribution("modelserver")
    except metadata.PackageNotFoundError as error:
        raise ConfigError("modelserver is not installed as a package: install it with pip") from error
    described = f"modelserver-{package.version}.dist-info"
    path = folder / f"modelserver-{package.version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*_sources(), *_description(package, described)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
            _add(wheel, name, content)
        record.append(f"{described}/RECORD,,\n")
        _add(wheel, f"{described}/RECORD", "".join(record).encode())
    return path


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None  # noqa: S101, PT018 - they are installed together
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _description(package: metadata.Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    for name in _DESCRIPTION:
        text = package.read_text(name)
        if text is not None:
            yield f"{folder}/{name}", text.encode()


def _add(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    wheel.writestr(entry, content)
