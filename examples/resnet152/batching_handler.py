"""A custom ResNet-152 handler that processes whole batches, written as for TorchServe.

The server passes the requests of a batch as a list of at most ``batch_size`` rows; the handler must return
one answer per row, in the same order.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image
from torchvision import transforms
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import map_class_to_label

ANSWERS = 5


class ResNetBatchClassifier(BaseHandler):
    """Returns the likeliest classes of pictures; BaseHandler loads network, weights and labels."""

    prepare = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def preprocess(self, data: list[dict[str, Any]]) -> torch.Tensor:
        """Converts rows with the bytes of one picture each to a tensor of n x 3 x 224 x 224."""
        pictures = []
        for row in data:
            content = row.get("data") or row.get("body")
            picture = Image.open(io.BytesIO(content)).convert("RGB")
            pictures.append(self.prepare(picture))
        return torch.stack(pictures).to(self.device)

    def inference(self, data: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the whole batch at once: n x classes."""
        with torch.inference_mode():
            return self.model(data)

    def postprocess(self, data: torch.Tensor) -> list[dict[str, float]]:
        """One answer per row."""
        likeliest = torch.softmax(data, dim=1).topk(ANSWERS, dim=1)
        return map_class_to_label(likeliest.values.tolist(), self.mapping, likeliest.indices.tolist())
