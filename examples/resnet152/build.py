"""Builds resnet-152.mar: ``python examples/resnet152/build.py --export-path model_store``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.zoo import RANDOM, NetworkSpec, build_network, find_weights

HERE = Path(__file__).resolve().parent
# The network in model.py, and its replacement for each architecture.
WRITTEN = "Bottleneck, [3, 8, 36, 3]"
LAYERS = {
    "resnet18": "BasicBlock, [2, 2, 2, 2]",
    "resnet34": "BasicBlock, [3, 4, 6, 3]",
    "resnet50": "Bottleneck, [3, 4, 6, 3]",
    "resnet101": "Bottleneck, [3, 4, 23, 3]",
    "resnet152": WRITTEN,
}


def step(text: str) -> None:
    """Print the step that starts now."""
    print(f"{text} ...", flush=True)


def model_source(arch: str) -> str:
    """The source of the model file for ``arch``."""
    block = LAYERS[arch].partition(",")[0]
    text = (HERE / "model.py").read_text(encoding="utf-8")
    text = text.replace(WRITTEN, LAYERS[arch]).replace("import Bottleneck,", f"import {block},")
    return text.replace("ResNet-152", arch)


def handler_settings(arch: str, weights: str) -> dict[str, int]:
    """``resize`` and ``crop`` if the weights need values other than 256 and 224."""
    if weights == RANDOM or weights.endswith((".pth", ".pt")):
        return {}
    preset = find_weights(arch, weights).transforms()
    sizes = {"resize": preset.resize_size[0], "crop": preset.crop_size[0]}
    return {} if sizes == {"resize": 256, "crop": 224} else sizes


def write_parts(folder: Path, arch: str, model: nn.Module, labels: tuple[str, ...]) -> None:
    """Write model file, weights and labels."""
    (folder / "model.py").write_text(model_source(arch), encoding="utf-8")
    torch.save(model.state_dict(), folder / f"{arch}.pth")
    names = {str(number): label for number, label in enumerate(labels)}
    (folder / "index_to_name.json").write_text(json.dumps(names, indent=0), encoding="utf-8")


def pack(folder: Path, settings: dict[str, int], options: argparse.Namespace) -> Path:
    """Write the archive from the parts in ``folder`` and return its path."""
    config_file = folder / "model-config.yaml"
    if settings:
        lines = [f"  {key}: {value}" for key, value in settings.items()]
        config_file.write_text("\n".join(["handler:", *lines, ""]), encoding="utf-8")
    options.export_path.mkdir(parents=True, exist_ok=True)
    config = ArchiveConfig(
        model_name=options.model_name or options.arch.replace("resnet", "resnet-"),
        version="1.0",
        handler=options.handler,
        model_file=folder / "model.py",
        serialized_file=folder / f"{options.arch}.pth",
        extra_files=str(folder / "index_to_name.json"),
        config_file=config_file if settings else None,
        export_path=options.export_path,
        force=True,
    )
    return build_archive(config)


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description="Build resnet-152.mar (or another ResNet's archive).")
    parser.add_argument(
        "--weights",
        default="IMAGENET1K_V2",
        help="IMAGENET1K_V1, IMAGENET1K_V2 (downloaded by torchvision), random, or a .pth file of your own",
    )
    parser.add_argument("--seed", type=int, default=0, help="for --weights random")
    parser.add_argument("--arch", choices=list(LAYERS), default="resnet152")
    parser.add_argument("--handler", default="image_classifier", help="built-in name, or a file of your own")
    parser.add_argument("--model-name", help="default: the architecture, as in resnet-152")
    parser.add_argument(
        "--export-path", type=Path, default=Path("model_store"), help="folder for the archive"
    )
    return parser.parse_args()


def main() -> None:
    """Build the network, save its parts, pack them."""
    options = arguments()
    step(f"{options.arch}: weights {options.weights}")
    try:
        network = build_network(NetworkSpec(options.arch, options.weights, options.seed), Path.cwd())
        settings = handler_settings(options.arch, options.weights)
    except ModelLoadError as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as folder:
        step("saving")
        write_parts(Path(folder), options.arch, network.model, network.labels)
        step("packing")
        print(f"wrote {pack(Path(folder), settings, options)}")


if __name__ == "__main__":
    main()
