"""The ResNet example's builder."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.zoo import random_network

BUILD = Path(__file__).resolve().parents[2] / "examples" / "resnet152" / "build.py"


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the builder."""
    command = [sys.executable, str(BUILD), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with random weights, built and unpacked."""
    folder = tmp_path_factory.mktemp("built")
    done = build("--arch", "resnet18", "--weights", "random", "--export-path", str(folder))
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(folder / "resnet-18.mar") as archive:
        archive.extractall(folder / "model")
    return folder / "model"


@pytest.mark.slow  # a process builds a ResNet-18
def test_one_command_builds_an_archive(
    unpacked: Path, make_context: Any, begin: Any, pictures: list[bytes]
) -> None:
    """The archive names the built-in handler, ImageNet's labels and the seeded network's weights."""
    manifest = json.loads((unpacked / "MAR-INF" / "MANIFEST.json").read_bytes())["model"]
    context = make_context(
        unpacked,
        {"warmup": False},
        modelFile=manifest["modelFile"],
        serializedFile=manifest["serializedFile"],
    )
    handler = ImageClassifier()
    handler.initialize(context)
    begin(context)
    (answer,) = handler.handle([{"body": pictures[0]}], context)

    assert (manifest["modelName"], manifest["handler"]) == ("resnet-18", "image_classifier")
    assert len(answer) == 5
    assert set(answer) <= set((handler.mapping or {}).values())
    assert torch.allclose(
        handler.model.state_dict()["fc.weight"], random_network("resnet18", 0).state_dict()["fc.weight"]
    )


def test_wrong_weights_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name of weights ends the command with the names there are, without a traceback."""
    arguments = ["--arch", "resnet18", "--weights", "BEST", "--export-path", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(BUILD), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BUILD), run_name="__main__")

    assert ended.value.code == (
        "resnet18 has no weights BEST; there are IMAGENET1K_V1, DEFAULT, random, or a .pth file"
    )
