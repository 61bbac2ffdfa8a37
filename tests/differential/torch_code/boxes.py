"""A detector that returns the same boxes for every picture."""

import torch


class Boxes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(self, pictures):
        detections = {
            "boxes": torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0], [5.0, 6.0, 7.0, 8.0]]),
            "labels": torch.tensor([1, 2, 1]),
            "scores": torch.tensor([0.75, 0.25, 0.5]),
        }
        return [detections for _ in pictures]
