"""``ImageSegmenter``: what each pixel of a picture shows (reference 14.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.pictures.classic import classic_processing, configured_processing
from modelserver_handlers.vision import VisionHandler


class ImageSegmenter(VisionHandler):
    """Answers height x width x 2: for each pixel the number of its likeliest class and its probability.

    model-config.yaml may say ``handler: {resize: 520, crop: 480}``. See also VisionOptions.
    """

    pipelined: ClassVar[bool] = True
    picture_mode = "RGB"
    image_processing: Callable[[Any], Any] = classic_processing()

    def _ms_choose_processing(self) -> None:
        configured = configured_processing(self._ms_handler_settings())
        if configured is not None:
            self.image_processing, self.picture_mode = configured, "RGB"

    def postprocess(self, data: Any) -> list[Any]:
        """Logits (n x classes x height x width, or a mapping that has them as ``out``) to nested lists."""
        logits: torch.Tensor = data["out"] if isinstance(data, Mapping) else data
        best, classes = torch.nn.functional.softmax(logits, dim=1).max(dim=1)
        pixels: list[Any] = torch.stack((classes.type_as(best), best), dim=3).tolist()
        return pixels

    def get_insights(self, tensor_data: torch.Tensor, _inputs: Any, target: Any = 0) -> list[Any]:
        """Raises PredictionException (501): a class for each pixel is not explained."""
        raise PredictionException("image_segmenter explains nothing", 501)
