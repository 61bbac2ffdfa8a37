"""``TextClassifier``: the probability of each class for a text (reference 14.4)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from modelserver_handlers.handler_options import handler_settings, whole_number
from modelserver_handlers.labels import map_class_to_label
from modelserver_handlers.text_handler import TextHandler


class TextClassifier(TextHandler):
    """Answers ``{label: probability}`` for all classes in their order, or for the ``topk`` likeliest.

    model-config.yaml may say ``handler: {topk: 3, ngrams: 1}``.
    """

    _ms_names_classes: ClassVar[bool] = True
    topk: int | None = None

    def initialize(self, context: Any) -> None:
        """Loads the model as TextHandler does. Raises ModelLoadError for an invalid option of ``handler``."""
        super().initialize(context)
        settings = handler_settings(self.model_yaml_config)
        if "topk" in settings:
            self.topk = whole_number(settings, "topk", 1)

    def postprocess(self, data: torch.Tensor) -> list[Any]:
        """Logits (n x classes) to one ``{label: probability}`` per row."""
        scores = torch.nn.functional.softmax(data, dim=1)
        if self.topk is None:
            return list(map_class_to_label(scores.tolist(), self.mapping))
        best, classes = torch.topk(scores, min(self.topk, scores.shape[1]), dim=1)
        return list(map_class_to_label(best.tolist(), self.mapping, classes.tolist()))
