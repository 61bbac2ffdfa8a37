"""Trains the detector and packs it: ``python examples/detector/build.py --export-path model_store``.

Takes about ten seconds on two cores; it draws the training pictures itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torchvision.transforms.functional import to_tensor

from modelserver.tools.archiver import ArchiveConfig, build_archive

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from shape_model import CLASSES, STRIDE, ShapeNet  # noqa: E402
from shapes import NAMES, Shape, draw_shapes  # noqa: E402

BATCH = 16
HELD_OUT_SEED = 1_000_000
SAMPLE_SEED = HELD_OUT_SEED + 50
ENOUGH = 0.9


def targets(shapes: list[Shape], cells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Targets of a picture: class scores, distances to the edges, and a mask of where these count."""
    scores = torch.zeros(CLASSES, cells, cells)
    edges, counts = torch.zeros(4, cells, cells), torch.zeros(cells, cells)
    centres = (torch.arange(cells) + 0.5) * STRIDE
    for shape in shapes:
        x1, y1, x2, y2 = shape.box
        across, down = (x1 + x2) / 2, (y1 + y2) / 2
        squared = (centres[None, :] - across) ** 2 + (centres[:, None] - down) ** 2
        scores[shape.label - 1] = torch.maximum(scores[shape.label - 1], torch.exp(-squared / 50))
        cell = int(down // STRIDE), int(across // STRIDE)
        scores[shape.label - 1][cell] = 1
        x, y = float(centres[cell[1]]), float(centres[cell[0]])
        edges[:, cell[0], cell[1]] = torch.tensor([x - x1, y - y1, x2 - x, y2 - y])
        counts[cell] = 1
    return scores, edges, counts


def train(steps: int, seed: int) -> ShapeNet:
    """A trained network in evaluation mode; prints its loss every 20 steps."""
    torch.manual_seed(seed)
    model = ShapeNet().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    for step in range(steps):
        drawn = [draw_shapes(seed + step * BATCH + number) for number in range(BATCH)]
        pictures = torch.stack([to_tensor(picture) for picture, _ in drawn])
        scores, edges, counts = map(
            torch.stack, zip(*(targets(shapes, 96 // STRIDE) for _, shapes in drawn), strict=True)
        )
        outputs, distances = model.maps(pictures)
        weights = 1 + 20 * (scores == 1).any(dim=1, keepdim=True)
        centres = nn.functional.binary_cross_entropy_with_logits(outputs, scores, weights)
        away = ((distances - edges).abs().sum(1) * counts).sum() / counts.sum() / STRIDE
        loss = centres + 0.1 * away
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 19:
            print(f"\rtraining: step {step + 1} of {steps}, loss {loss.item():.3f} ", end="", flush=True)
    print()
    return model.eval()


def detection_share(model: ShapeNet, pictures: int = 50) -> float:
    """Correctly found shapes in held-out pictures, divided by all true shapes plus false detections.

    A shape is found if the label is right, the boxes overlap by 0.75, and the score is at least 0.5.
    """
    matches = total = 0
    for number in range(pictures):
        picture, shapes = draw_shapes(HELD_OUT_SEED + number)
        with torch.inference_mode():
            answer = model([to_tensor(picture)])[0]
        sure = answer["scores"] >= 0.5
        boxes = list(zip(answer["labels"][sure].tolist(), answer["boxes"][sure].tolist(), strict=True))
        right = sum(
            any(label == shape.label and overlap(box, shape.box) >= 0.75 for label, box in boxes)
            for shape in shapes
        )
        matches += right
        total += len(shapes) + len(boxes) - right
    return matches / total


def overlap(one: list[float], other: tuple[int, int, int, int]) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(0.0, width) * max(0.0, height)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return common / (areas - common)


def pack(model: ShapeNet, export_path: Path) -> Path:
    """Write ``shapes.mar`` and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        weights, labels = Path(folder) / "shapes.pt", Path(folder) / "index_to_name.json"
        torch.save(model.state_dict(), weights)
        labels.write_text(json.dumps({str(number): name for number, name in NAMES.items()}))
        config = ArchiveConfig(
            model_name="shapes",
            version="1.0",
            handler="object_detector",
            model_file=HERE / "shape_model.py",
            serialized_file=weights,
            extra_files=str(labels),
            config_file=HERE / "model-config.yaml",
            export_path=export_path,
            force=True,
        )
        return build_archive(config)


def main() -> None:
    """Train, measure on held-out pictures, pack."""
    parser = argparse.ArgumentParser(description="Train a detector of shapes and pack it as shapes.mar.")
    parser.add_argument("--export-path", type=Path, default=Path("model_store"), help="folder for shapes.mar")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = train(options.steps, options.seed)
    share = detection_share(model)
    print(f"{share:.0%} of the shapes and boxes in held-out pictures match")
    if share < ENOUGH:
        sys.exit(f"That is less than {ENOUGH:.0%}: nothing was written. Train longer (--steps).")
    options.export_path.mkdir(parents=True, exist_ok=True)
    draw_shapes(SAMPLE_SEED, (160, 120))[0].save(HERE / "shapes.png", optimize=True)
    print(f"wrote {pack(model, options.export_path)}")


if __name__ == "__main__":
    main()
