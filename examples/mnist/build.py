"""Trains the digit classifier and packs it: ``python examples/mnist/build.py --export-path model_store``.

Needs scikit-learn for its digits. Takes a minute or two on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torchvision.transforms.functional import to_pil_image

from modelserver.tools.archiver import ArchiveConfig, build_archive

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from digits import SEED, Digits, draw, draw_varied, split  # noqa: E402
from mnist_handler import MEAN, STD  # noqa: E402
from model import DigitNet  # noqa: E402

ENOUGH = 0.97


def train(learnt: Digits, epochs: int, seed: int) -> DigitNet:
    """A trained network in evaluation mode; prints one line per epoch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = DigitNet().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = epochs * -(-len(learnt) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=steps)
    for epoch in range(1, epochs + 1):
        losses = []
        for rows in torch.split(torch.randperm(len(learnt), generator=generator), 128):
            pictures = (draw_varied(learnt.pictures[rows], generator) - MEAN) / STD
            loss = nn.functional.cross_entropy(model(pictures), learnt.labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(
            f"\rtraining: epoch {epoch} of {epochs}, loss {sum(losses) / len(losses):.3f} ",
            end="",
            flush=True,
        )
    print()
    return model.eval()


def accuracy(model: nn.Module, digits: Digits) -> float:
    """The share of digits that the model classifies correctly."""
    with torch.inference_mode():
        answers = model((draw(digits.pictures) - MEAN) / STD).argmax(dim=1)
    return float((answers == digits.labels).float().mean())


def pack(model: nn.Module, export_path: Path) -> Path:
    """Write ``mnist.mar`` and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "mnist_cnn.pt"
        torch.save(model.state_dict(), weights)
        labels = Path(folder) / "index_to_name.json"
        labels.write_text(json.dumps({str(digit): str(digit) for digit in range(10)}))
        config = ArchiveConfig(
            model_name="mnist",
            version="1.0",
            handler=str(HERE / "mnist_handler.py"),
            model_file=HERE / "model.py",
            serialized_file=weights,
            extra_files=str(labels),
            config_file=HERE / "model-config.yaml",
            export_path=export_path,
            force=True,
        )
        return build_archive(config)


def save_sample(held: Digits, path: Path) -> None:
    """Save the first held-out 2 as a sample picture."""
    first = held.pictures[held.labels == 2][:1]
    to_pil_image(draw(first)[0]).save(path, optimize=True)


def main() -> None:
    """Train, measure on the held-out digits, pack."""
    parser = argparse.ArgumentParser(description="Train a digit classifier and pack it as mnist.mar.")
    parser.add_argument("--export-path", type=Path, default=Path("model_store"), help="folder for mnist.mar")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    learnt, held = split()
    model = train(learnt, options.epochs, options.seed)
    share = accuracy(model, held)
    print(f"{share:.2%} of {len(held)} held-out digits are right")
    if share < ENOUGH:
        sys.exit(f"That is less than {ENOUGH:.0%}: nothing was written. Train longer (--epochs).")
    options.export_path.mkdir(parents=True, exist_ok=True)
    save_sample(held, HERE / "digit-2.png")
    print(f"wrote {pack(model, options.export_path)}")


if __name__ == "__main__":
    main()
