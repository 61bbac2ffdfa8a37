"""The model of an image: a folder of its store, with all files that it needs and none that it does not."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modelserver.errors import ConfigError, InvalidModel
from modelserver.ext.files.layout import lay_out_file
from modelserver.models.archives.manifest import MANIFEST_PATH, Manifest, parse_manifest
from modelserver.models.archives.single_file import SingleFile
from modelserver.models.archives.store import SUFFIXES
from modelserver.models.archives.unpack import unpack
from modelserver.surface.auth.scopes import KEY_FILE

MARK: Final = "# Written by modelserver build"
"""How the Dockerfile of a context begins."""

# The modules that a built-in handler imports beside modelserver's own, by the suffix of its model file.
_OF_SUFFIX: Final = {
    ".onnx": ("onnxruntime", "torch"),
    ".skops": ("skops", "sklearn"),
    ".joblib": ("joblib", "sklearn"),
    ".json": ("xgboost",),
    ".ubj": ("xgboost",),
}
_OF_HANDLER: Final = {
    "base_handler": ("torch",),
    "vllm_handler": ("vllm",),
    **dict.fromkeys(
        ("image_classifier", "image_segmenter", "object_detector", "densenet_handler"),
        ("torch", "torchvision"),
    ),
    "text_classifier": ("torch",),
}


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model in a store. ``manifest`` is that of the hub model's folder: none.

    ``needs`` are modules that its handler imports; ``files`` and ``size`` are what was copied.
    """

    name: str
    manifest: Manifest
    needs: tuple[str, ...]
    files: int
    size: int


def pack_model(file: Path, single: SingleFile | None, store: Path, name: str | None) -> PackedModel:
    """Copies the model into a new folder of the store. Raises ConfigError and OSError."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        try:
            if single is not None:
                lay_out_file(single, folder)
            elif file.is_dir():
                folder = file
            else:
                unpack(file, folder)
            data = (folder / MANIFEST_PATH).read_bytes() if (folder / MANIFEST_PATH).is_file() else None
            manifest = Manifest(missing=True) if data is None else parse_manifest(data)
        except InvalidModel as error:
            raise ConfigError(error.message) from error
        name = name or manifest.model_name or _stem(file)
        files = size = 0
        for path, place in _files(folder):
            target = store / name / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            files, size = files + 1, size + target.stat().st_size
    return PackedModel(name, manifest, _needs(manifest), files, size)


def _stem(file: Path) -> str:
    return next(
        (file.name.removesuffix(suffix) for suffix in SUFFIXES if file.name.endswith(suffix)), file.name
    )


def _needs(manifest: Manifest) -> tuple[str, ...]:
    """The modules that a built-in handler imports; what an own one does is in its sources."""
    handler = manifest.handler or ""
    file = str((manifest.raw.get("model") or {}).get("serializedFile") or "")
    if handler in ("base_handler", "tabular") and Path(file).suffix in _OF_SUFFIX:
        return _OF_SUFFIX[Path(file).suffix]
    return _OF_HANDLER.get(handler, ())


def _files(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Each file below a folder with its place in the store; links are followed, once each.

    Hidden files, caches, virtual environments, tokens of a server and contexts written before are left out.
    """
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in seen or (here != str(folder) and _is_no_model(Path(here))):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(files):
            path = Path(here, name)
            if not name.startswith(".") and name != KEY_FILE and _is_regular(path):
                yield path, path.relative_to(folder)


def _is_no_model(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file() or folder.name == "node_modules" or is_context(folder)


def is_context(folder: Path) -> bool:
    """Whether it is the context of an image that was written before."""
    try:
        with (folder / "Dockerfile").open(encoding="utf-8") as file:
            return file.readline().startswith(MARK)
    except (OSError, UnicodeError):
        return False


def _is_regular(path: Path) -> bool:
    """Whether it is a file, and no device, socket or link that leads nowhere."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
