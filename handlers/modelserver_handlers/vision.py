"""``VisionHandler``: pictures in, a tensor for the network out (reference 14.3)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from PIL import Image

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.gradients import integrated_gradients
from modelserver_handlers.pictures import BadPicture, open_picture, picture_input

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DECODERS = 16


class VisionHandler(BaseHandler):
    """Decodes pictures, applies ``image_processing`` to each, and stacks them.

    A subclass gives ``image_processing``: a picture to a tensor. ``picture_mode`` is what pictures are
    converted to before; a class that brings its own ``image_processing`` and no ``picture_mode`` gets them as
    the file has them, as in TorchServe. A picture that cannot be read is rejected alone.
    """

    pipelined: ClassVar[bool] = True
    picture_mode: str | None = None
    image_processing: Callable[[Image.Image], Any]
    _decoders: ThreadPoolExecutor | None = None

    def initialize(self, context: Any) -> None:
        """As BaseHandler, and lift Pillow's limit of pixels where ``limit_max_image_pixels`` is false."""
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels", True):
            Image.MAX_IMAGE_PIXELS = None
        self._decoders = start_decoders(min(torch.get_num_threads(), MAX_DECODERS))

    def preprocess(self, data: Any) -> torch.Tensor:
        """Rows to one tensor, rejected ones left out; empty if all were. All must come out in one shape."""
        mode = self._mode()
        tensors = []
        for idx, prepared in enumerate(self._each(lambda row: self._prepare_row(row, mode), list(data))):
            if isinstance(prepared, BadPicture):
                self._reject(idx, str(prepared))
            else:
                tensors.append(prepared)
        return self._stack(tensors).to(self.device) if tensors else torch.empty(0)

    def _stack(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """One tensor, made by a single thread: this may run beside inference, which needs the cores more."""
        if self._decoders is None:
            return torch.stack(tensors)
        return self._decoders.submit(torch.stack, tensors).result()

    def get_insights(self, tensor_data: torch.Tensor, _inputs: Any, target: Any = 0) -> list[Any]:
        """Integrated gradients of each row as lists; PredictionException (400) for an unknown class."""
        try:
            return list(integrated_gradients(self.model, tensor_data.to(self.device), target).tolist())
        except IndexError:
            raise PredictionException(f"the model has no class {target}", 400) from None

    def _prepare_row(self, row: Any, mode: str | None) -> Any:
        """A tensor, or the BadPicture that says why there is none."""
        try:
            value = picture_input(row)
            return value if isinstance(value, torch.Tensor) else self._process(value, mode)
        except BadPicture as bad:
            return bad

    def _process(self, encoded: bytes, mode: str | None) -> Any:
        return self.image_processing(open_picture(encoded, mode))

    def _each(self, function: Callable[[Any], Any], rows: list[Any]) -> list[Any]:
        if self._decoders is None:
            return [function(row) for row in rows]
        return list(self._decoders.map(function, rows))

    def _reject(self, idx: int, message: str) -> None:
        reject = getattr(self.context, "reject", None)
        if reject is None:
            raise PredictionException(message, 400)
        reject(idx, message, 400)

    def _mode(self) -> str | None:
        """``picture_mode`` if it is stated at least as near as ``image_processing``: both belong together."""
        for owner in (self, *type(self).__mro__):
            if "picture_mode" in vars(owner):
                return self.picture_mode
            if "image_processing" in vars(owner):
                return None
        return None


def start_decoders(count: int) -> ThreadPoolExecutor | None:
    """Threads that decode pictures side by side, each using one core; None where one core is all there is.

    torch's thread count is a thread's own once that thread has used and then set it, but setting it moves
    the default for threads to come: hence all start now, and the default is restored.
    """
    if count < 2:
        return None
    default = torch.get_num_threads()
    started = Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="decode")
    for _ in range(count):
        pool.submit(begin)
    started.wait()
    torch.set_num_threads(default)
    return pool
