"""A small single-stage detector: a score and a box at every eighth pixel."""

from __future__ import annotations

import torch
from torch import nn

STRIDE = 8
CLASSES = 3
MAX_BOXES = 20  # maximum number of boxes per picture


class ShapeNet(nn.Module):
    """Maps pictures (a list of 3 x height x width, 0 to 1) to ``{boxes, labels, scores}`` each, best first.

    Boxes are x1, y1, x2, y2 in pixels; labels start at 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(3, 16, stride=2),
            *_block(16, 24, stride=2),
            *_block(24, 48, stride=2),
            *_block(48, 48, dilation=2),
            *_block(48, 48, dilation=2),
        )
        self.heads = nn.Conv2d(48, CLASSES + 4, 1)

    def maps(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (n x classes x h x w) of centres, and the distances to the four edges in pixels."""
        heads = self.heads(self.features(pictures - 0.5))
        return heads[:, :CLASSES], nn.functional.softplus(heads[:, CLASSES:]) * STRIDE

    def forward(self, pictures: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        return [self.detect(picture) for picture in pictures]

    def detect(self, picture: torch.Tensor) -> dict[str, torch.Tensor]:
        """The shapes in one picture of any size."""
        logits, edges = self.maps(picture.unsqueeze(0))
        scores = logits[0].sigmoid()
        nearby = nn.functional.max_pool2d(scores, 5, stride=1, padding=2).amax(dim=0)
        peaks = scores * (scores == nearby)
        best, places = peaks.flatten().topk(min(MAX_BOXES, peaks.numel()))
        width = scores.shape[2]
        cells = places % (scores.shape[1] * width)
        down, across = cells // width, cells % width
        left, top, right, bottom = edges[0, :, down, across]
        x, y = (across + 0.5) * STRIDE, (down + 0.5) * STRIDE
        return {
            "boxes": torch.stack((x - left, y - top, x + right, y + bottom), dim=1),
            "labels": places // (scores.shape[1] * width) + 1,
            "scores": best,
        }


def _block(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()
