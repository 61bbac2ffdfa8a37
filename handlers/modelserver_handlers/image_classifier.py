"""``ImageClassifier``: the most likely classes of a picture (reference 14.3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from modelserver_handlers.handler_options import whole_number
from modelserver_handlers.labels import map_class_to_label
from modelserver_handlers.pictures.classic import (
    ClassicProcessing,
    classic_processing,
    configured_processing,
)
from modelserver_handlers.vision import VisionHandler
from modelserver_handlers.zoo import Network, NetworkSpec, build_network


class ImageClassifier(VisionHandler):
    """Answers ``{label: probability}`` for the ``topk`` most likely classes, in descending order.

    Unlike in TorchServe, a model with fewer classes answers all of them instead of failing.
    model-config.yaml may say ``handler: {topk: 3, resize: 232, crop: 224}``, and ``handler: {torchvision:
    {arch, weights, seed}}`` to build the network instead of loading it from the archive. See also
    VisionOptions.
    """

    pipelined: ClassVar[bool] = True
    _ms_names_classes: ClassVar[bool] = True
    topk = 5
    picture_mode = "RGB"
    image_processing: Callable[[Any], Any] = classic_processing()
    _ms_network: Network | None = None

    def set_max_result_classes(self, topk: int) -> None:
        """Answer ``topk`` classes; a model with fewer answers all."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """How many classes are answered."""
        return self.topk

    def _ms_choose_processing(self) -> None:
        settings = self._ms_handler_settings()
        self.topk = whole_number(settings, "topk", self.topk)
        processing: Callable[[Any], Any] | None = configured_processing(settings)
        if processing is None and self._ms_network is not None:
            preset = self._ms_network.transforms
            processing = ClassicProcessing.of_preset(preset) or preset
        if processing is not None:
            self.image_processing, self.picture_mode = processing, "RGB"

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (n x classes) to one ``{label: probability}`` per row."""
        scores = torch.nn.functional.softmax(data, dim=1)
        best, classes = torch.topk(scores, min(self.topk, scores.shape[1]), dim=1)
        return list(map_class_to_label(best.tolist(), self.mapping, classes.tolist()))

    def _ms_load_model(self, model_dir: str) -> Any:
        settings = self._ms_handler_settings().get("torchvision")
        if settings is None:
            return super()._ms_load_model(model_dir)
        self._ms_network = build_network(NetworkSpec.parse(settings), Path(model_dir))
        return self._ms_network.model.to(self.device)

    def _ms_load_labels(self, model_dir: str) -> dict[str, str] | None:
        if self._ms_network is None or (Path(model_dir) / "index_to_name.json").is_file():
            return super()._ms_load_labels(model_dir)
        return {str(number): label for number, label in enumerate(self._ms_network.labels)} or None
