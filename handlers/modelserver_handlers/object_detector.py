"""``ObjectDetector``: what a picture shows, and where (reference 14.3)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import torch
from torchvision import transforms

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.handler_options import probability
from modelserver_handlers.vision import VisionHandler, unfit

_LIST = re.compile(r"(\w+\.)*(list|sequence|iterable)\b", re.IGNORECASE)


class ObjectDetector(VisionHandler):
    """Answers ``[{label: [x1, y1, x2, y2], "score": s}, ...]``, in pixels, for scores >= ``threshold``.

    In the order of the network, which returns ``{boxes, labels, scores}`` for each picture. It gets pictures
    of one size as one tensor (n x 3 x height x width, 0 to 1), and as a list of tensors if their sizes differ
    or its ``forward`` is annotated for a list. Unlike in TorchServe, the pictures of a batch may have
    different sizes, and a class without a label is answered by its number. model-config.yaml may say
    ``handler: {threshold: 0.3}``.
    """

    pipelined: ClassVar[bool] = True
    _ms_names_classes: ClassVar[bool] = True
    threshold = 0.5
    picture_mode = "RGB"
    image_processing: Callable[[Any], Any] = transforms.ToTensor()

    def _ms_choose_processing(self) -> None:
        self.threshold = probability(self._ms_handler_settings(), "threshold", self.threshold)

    def _ms_join(self, tensors: list[torch.Tensor]) -> Any:
        if all(tensor.shape == tensors[0].shape for tensor in tensors):
            return super()._ms_join(tensors)
        return [tensor.to(self.device) for tensor in tensors]

    @cached_property
    def _ms_takes_list(self) -> bool:
        return takes_list(self.model)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The network's detections for pictures, one mapping each."""
        if isinstance(data, torch.Tensor) and not self._ms_takes_list:
            return super().inference(data, *args, **kwargs)
        with self._ms_reject_unfit_tensors(data), torch.inference_mode():
            return self.model([picture.to(self.device) for picture in data], *args, **kwargs)

    def _ms_unfit_reason(self, data: Any) -> str:
        reasons = (unfit(picture.shape, picture.dtype, (3, -1, -1)) for picture in data)
        return next(filter(None, reasons), "")

    def postprocess(self, data: Any) -> list[Any]:
        """Detections of each picture to a list of labelled boxes."""
        # torchvision's networks in TorchScript return (losses, detections).
        return [self._ms_boxes(detections) for detections in (data[1] if isinstance(data, tuple) else data)]

    def _ms_boxes(self, detections: Any) -> list[dict[str, Any]]:
        names = self.mapping or {}
        boxes = zip(*(detections[field].tolist() for field in ("labels", "boxes", "scores")), strict=True)
        return [
            {names.get(str(label), str(label)): box, "score": score}
            for label, box, score in boxes
            if score >= self.threshold
        ]

    def get_insights(self, tensor_data: torch.Tensor, _inputs: Any, target: Any = 0) -> list[Any]:
        """Raises PredictionException (501): boxes are not explained."""
        raise PredictionException("object_detector explains nothing", 501)


def takes_list(model: Any) -> bool:
    """Whether the first argument of ``model``'s ``forward`` is annotated as a list."""
    if isinstance(model, torch.jit.ScriptModule):
        schema: Any = model.forward.schema  # type: ignore[attr-defined]
        arguments = schema.arguments[1:]
        return bool(arguments) and arguments[0].type.kind() == "ListType"
    # torch.compile's wrapper has no annotations.
    forward = getattr(type(getattr(model, "_orig_mod", model)), "forward", None)
    if forward is None:
        return False
    annotations = [parameter.annotation for parameter in inspect.signature(forward).parameters.values()]
    annotation = annotations[1] if len(annotations) > 1 else inspect.Parameter.empty
    return _LIST.match(annotation if isinstance(annotation, str) else repr(annotation)) is not None
