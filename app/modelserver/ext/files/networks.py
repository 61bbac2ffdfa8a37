"""``torchvision://<arch>?weights=…&seed=…``: a network of torchvision without an archive.

The server writes a model directory that names the network; the image classifier handler builds it in the
worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import yaml

from modelserver.errors import BadRequest
from modelserver.ext.files.layout import make_folder, write_manifest

_ARCH: Final = re.compile(r"[a-z][a-z0-9_]{0,99}")
_NAMED_WEIGHTS: Final = re.compile(r"DEFAULT|random|IMAGENET1K_[A-Z0-9_]{1,50}")
_WEIGHTS_FILE: Final = re.compile(r"[^/\\.][^/\\]*\.pth")
_PARAMETERS: Final = ("weights", "seed")
_MAX_SEED: Final = 2**63 - 1
_CONFIG_FILE: Final = "model-config.yaml"


@dataclass(frozen=True, slots=True)
class TorchvisionSource:
    """A torchvision network and the source of its weights.

    ``weights`` is ``DEFAULT``, ``IMAGENET1K_…``, ``random`` (from ``seed``) or a ``.pth`` file in the model
    store.
    """

    arch: str
    weights: str = "DEFAULT"
    seed: int = 0

    @classmethod
    def parse(cls, url: str) -> TorchvisionSource:
        """Raises ``BadRequest`` naming what is allowed."""
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
        except ValueError as error:
            raise _bad(url, "the form is torchvision://<arch>?weights=…&seed=…") from error
        if not _ARCH.fullmatch(parts.netloc) or parts.path not in ("", "/") or parts.fragment:
            raise _bad(url, "an architecture such as torchvision://resnet152 is needed")
        names = [name for name, _ in pairs]
        if unknown := [name for name in names if name not in _PARAMETERS]:
            raise _bad(url, f"unknown parameter {unknown[0]!r}; allowed are {' and '.join(_PARAMETERS)}")
        if len(set(names)) != len(names):
            raise _bad(url, "each parameter may be given once")
        values = dict(pairs)
        return cls(parts.netloc, _weights(url, values), _seed(url, values))

    def write(self, workdir: Path, find_weights: Callable[[str], Path]) -> Path:
        """Writes the model directory into ``workdir`` and returns it.

        ``find_weights`` gets the name of a file of weights in the model store. Raises ``OSError``, and what
        that raises.
        """
        is_named = _NAMED_WEIGHTS.fullmatch(self.weights) is not None
        weights = self.weights if is_named else str(find_weights(self.weights))
        folder = workdir / uuid4().hex
        make_folder(folder)
        network = {"arch": self.arch, "weights": weights, "seed": self.seed}
        config = yaml.safe_dump({"handler": {"torchvision": network}}, sort_keys=False)
        (folder / _CONFIG_FILE).write_text(config, encoding="utf-8")
        model = {"modelName": self.arch, "handler": "image_classifier", "modelVersion": "1.0"}
        write_manifest(folder, {**model, "configFile": _CONFIG_FILE})
        return folder


def _weights(url: str, values: dict[str, str]) -> str:
    weights = values.get("weights", "DEFAULT")
    if not _NAMED_WEIGHTS.fullmatch(weights) and not _WEIGHTS_FILE.fullmatch(weights):
        allowed = "DEFAULT, IMAGENET1K_V1, IMAGENET1K_V2, random or a .pth file in the model store"
        raise _bad(url, f"weights={weights} is not allowed; use {allowed}")
    return weights


def _seed(url: str, values: dict[str, str]) -> int:
    text = values.get("seed", "0")
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > _MAX_SEED:
        raise _bad(url, f"seed={text} is not a whole number from 0 to {_MAX_SEED}")
    return int(text)


def _bad(url: str, reason: str) -> BadRequest:
    return BadRequest(f"Invalid url {url}: {reason}.")
