"""ResNet-152 as torchvision defines it."""

from __future__ import annotations

from torchvision.models.resnet import Bottleneck, ResNet


class ImageClassifier(ResNet):
    """Maps n x 3 x 224 x 224 to n x 1000 logits."""

    def __init__(self) -> None:
        super().__init__(Bottleneck, [3, 8, 36, 3])
