"""Archives and pictures made for a measurement."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from benchmarks.servers import ROOT, BenchmarkError
from modelserver.models.archives.manifest import MANIFEST_PATH
from modelserver.tools.archiver import ArchiveConfig, build_archive

HANDLER = '''"""Answers at once, or after a pause."""

import time

SECONDS = {seconds!r}


def handle(data, context):
    if data is None:
        return None
    if SECONDS:
        time.sleep(SECONDS)
    return [{{"ok": 1}} for _ in data]
'''
PICTURE_BYTES = 110_000
PICTURE_SIDE = 720
CALIBRATION = "calibration"
CALIBRATION_PICTURES = 16


def build_noop(store: Path, name: str = "noop", seconds: float = 0.0, version: str = "1.0") -> str:
    """An archive whose handler sleeps ``seconds`` per batch, then answers ``{"ok": 1}``; returns its name."""
    return build_handler(store, name, HANDLER.format(seconds=seconds), version)


def build_handler(store: Path, name: str, code: str, version: str = "1.0") -> str:
    """An archive of nothing but a handler; returns its name."""
    store.mkdir(parents=True, exist_ok=True)
    source = store / f"{name}_handler.py"
    source.write_text(code, "utf-8")
    return build(store, name, str(source), version)


def build_mlp(store: Path) -> str:
    """The archive of the small network over JSON; returns its name."""
    return build(store, "mlp", str(ROOT / "benchmarks" / "peers" / "mlp.py"))


def build(store: Path, name: str, handler: str, version: str = "1.0", **parts: Any) -> str:
    """An archive in the store, which is made if need be; returns its file name."""
    store.mkdir(parents=True, exist_ok=True)
    return build_archive(ArchiveConfig(name, handler, version, export_path=store, force=True, **parts)).name


def build_variant(store: Path, archive: str, name: str, settings: Mapping[str, Any]) -> str:
    """The same model, uncompressed, with ``settings`` in its ``model-config.yaml``, and with pictures for
    calibration if these name them; returns its file name.
    """
    with tempfile.TemporaryDirectory(prefix="variant-") as unpacked:
        folder = Path(unpacked)
        with zipfile.ZipFile(store / archive) as packed:
            packed.extractall(folder)
        model = json.loads((folder / MANIFEST_PATH).read_text("utf-8"))["model"]
        (folder / "model-config.yaml").write_text(yaml.safe_dump(dict(settings)), "utf-8")
        named = {model.get(key) for key in ("serializedFile", "modelFile", "handler")}
        named.add("model-config.yaml")
        extra = [str(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name not in named]
        if "calibration" in settings.get("handler", {}):
            samples = folder / "samples"
            (samples / CALIBRATION).mkdir(parents=True)
            for seed in range(CALIBRATION_PICTURES):
                (samples / CALIBRATION / f"{seed}.jpg").write_bytes(photograph(seed))
            extra.append(str(samples))
            _calm(folder / model["serializedFile"])
        parts = {"model_file": "modelFile", "serialized_file": "serializedFile"}
        files = {field: folder / model[key] for field, key in parts.items()}
        files["config_file"] = folder / "model-config.yaml"
        more = {"extra_files": ",".join(extra), "archive_format": "zip-store"}
        return build(store, name, model["handler"], **files, **more)


def _calm(weights: Path) -> None:
    """Makes a random ResNet's residual branches weak, as those of trained ones are.

    The arithmetic stays the same, but rounding no longer grows from block to block, so int8 passes the
    comparison of outputs at load.
    """
    import torch  # noqa: PLC0415 -- only for this

    state = torch.load(weights, weights_only=True)
    last = "bn3.weight" if any(name.endswith("bn3.weight") for name in state) else "bn2.weight"
    for name, value in state.items():
        if name.endswith(last):
            value.mul_(0.1)
    torch.save(state, weights)


def build_resnet(store: Path, arch: str) -> str:
    """The example's archive with seeded random weights; returns its file name. Raises BenchmarkError."""
    builder = ROOT / "examples" / "resnet152" / "build.py"
    command = [sys.executable, str(builder), "--arch", arch, "--weights", "random", "--seed", "0"]
    done = subprocess.run(
        [*command, "--export-path", str(store)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{builder} failed: {done.stderr or done.stdout}")
    return f"{arch.replace('resnet', 'resnet-')}.mar"


def photograph(seed: int = 0) -> bytes:
    """A JPEG of :data:`PICTURE_SIDE` pixels a side and about :data:`PICTURE_BYTES`, made like a photograph.

    Clouds of colour at every scale and a few soft objects, at the highest quality that stays below that size.
    """
    picture = _scene(random.Random(seed), PICTURE_SIDE)
    best = b""
    low, high = 5, 98
    while low <= high:
        quality = (low + high) // 2
        encoded = _jpeg(picture, quality)
        if len(encoded) <= PICTURE_BYTES:
            best, low = encoded, quality + 1
        else:
            high = quality - 1
    return best or _jpeg(picture, 5)


def _scene(chance: random.Random, side: int) -> Image.Image:
    picture = Image.new("RGB", (side, side), (128, 128, 128))
    for cells in (3, 6, 12, 24, 48, 96, 192):
        noise = Image.frombytes("RGB", (cells, cells), chance.randbytes(3 * cells * cells))
        cloud = noise.resize((side, side), Image.Resampling.BICUBIC)
        # Each octave half as strong as the one before: natural pictures fall off like that.
        weak = Image.blend(Image.new("RGB", (side, side), (128, 128, 128)), cloud, min(1.0, 2.4 / cells**0.7))
        picture = ImageChops.add(picture, weak, scale=1.0, offset=-128)
    objects = picture.copy()
    draw = ImageDraw.Draw(objects)
    for _ in range(12):
        x, y, extent = chance.randrange(side), chance.randrange(side), chance.randrange(side // 20, side // 5)
        draw.ellipse((x, y, x + extent, y + extent), fill=tuple(chance.randrange(256) for _ in range(3)))
    soft = objects.filter(ImageFilter.GaussianBlur(1.5))
    return Image.blend(picture, soft, 0.6)


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()
