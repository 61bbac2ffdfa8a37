"""``ImageClassifier``: the most likely classes of a picture (reference 14.3)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from modelserver_handlers.classic import ClassicProcessing
from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.labels import map_class_to_label
from modelserver_handlers.vision import VisionHandler
from modelserver_handlers.zoo import Network, NetworkSpec, build_network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def classic_processing(resize: int = 256, crop: int = 224) -> ClassicProcessing:
    """ImageNet's: shorter side to ``resize`` pixels, the middle ``crop`` x ``crop``, normalised."""
    return ClassicProcessing(resize, crop, MEAN, STD)


class ImageClassifier(VisionHandler):
    """Answers ``{label: probability}`` for the ``topk`` likeliest classes, in falling order.

    model-config.yaml may say ``handler: {resize: 232, crop: 224}``, and ``handler: {torchvision: {arch,
    weights, seed}}`` to build the network instead of loading it from the archive. There too: VisionOptions.
    """

    pipelined: ClassVar[bool] = True
    topk = 5
    picture_mode = "RGB"
    image_processing: Callable[[Any], Any] = classic_processing()
    _network: Network | None = None

    def set_max_result_classes(self, topk: int) -> None:
        """Answer ``topk`` classes; a model with fewer answers all."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """How many classes are answered."""
        return self.topk

    def _choose_processing(self) -> None:
        settings = self._handler_settings()
        if "resize" in settings or "crop" in settings:
            self._process_with(
                classic_processing(_pixels(settings, "resize", 256), _pixels(settings, "crop", 224))
            )
        elif self._network is not None and self._network.transforms is not None:
            preset = self._network.transforms
            self._process_with(ClassicProcessing.of_preset(preset) or preset)

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (n x classes) to one ``{label: probability}`` per row."""
        scores = torch.nn.functional.softmax(data, dim=1)
        best, classes = torch.topk(scores, min(self.topk, scores.shape[1]), dim=1)
        return list(map_class_to_label(best.tolist(), self.mapping, classes.tolist()))

    def _load_model(self, model_dir: str) -> Any:
        settings = self._handler_settings().get("torchvision")
        if settings is None:
            return super()._load_model(model_dir)
        self._network = build_network(NetworkSpec.parse(settings), Path(model_dir))
        return self._network.model.to(self.device)

    def _load_labels(self, model_dir: str) -> dict[str, str] | None:
        if self._network is None or (Path(model_dir) / "index_to_name.json").is_file():
            return super()._load_labels(model_dir)
        return {str(number): label for number, label in enumerate(self._network.labels)} or None

    def _process_with(self, processing: Callable[[Any], torch.Tensor]) -> None:
        self.image_processing = processing
        self.picture_mode = "RGB"


def _pixels(settings: Mapping[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"handler: {key} must be a number of pixels, got {value!r}")
    return value
