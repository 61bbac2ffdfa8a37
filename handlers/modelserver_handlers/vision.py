"""``VisionHandler``: turns pictures into a tensor for the network (reference 14.3)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from threading import Barrier
from typing import Any, ClassVar

import torch
from PIL import Image

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.current_device import enter_thread
from modelserver_handlers.errors import BadInput, PredictionException
from modelserver_handlers.handler_options import NVJPEG, NetworkOptions, VisionOptions, handler_settings
from modelserver_handlers.networks.cuda_graphs import BatchGraphs, batch_sizes, record_graphs
from modelserver_handlers.networks.insights import captum_attributions, integrated_gradients
from modelserver_handlers.networks.precision import is_eager
from modelserver_handlers.pictures.classic import ClassicProcessing, resized
from modelserver_handlers.pictures.nvjpeg import JpegDecoder, start_decoder
from modelserver_handlers.pictures.pictures import open_picture, picture_input
from modelserver_handlers.pictures.transfer import CopyStream, DeviceCropBuffer, HostCropBuffer, join

logger = logging.getLogger(__name__)

MAX_DECODERS = 16


class VisionHandler(BaseHandler):
    """Decodes pictures, applies ``image_processing`` to each, and stacks them.

    A subclass defines ``image_processing``: a picture to a tensor. Pictures are converted to
    ``picture_mode`` before; a class with its own ``image_processing`` and no ``picture_mode`` gets them as in
    the file, like in TorchServe. Only pictures that cannot be read are rejected.

    If ``image_processing`` is a ClassicProcessing, batches are prepared the fast way; on a GPU, ``handler``
    in model-config.yaml may then enable more (VisionOptions).
    """

    pipelined: ClassVar[bool] = True
    picture_mode: str | None = None
    image_processing: Callable[[Image.Image], Any]
    _ms_options = VisionOptions()
    _ms_decoders: ThreadPoolExecutor | None = None
    _ms_copies: CopyStream | None = None
    _ms_jpeg_decoder: JpegDecoder | None = None
    _ms_graphs: BatchGraphs | None = None

    def initialize(self, context: Any) -> None:
        """Loads the model, and lifts Pillow's pixel limit if ``limit_max_image_pixels`` is false.

        Raises ModelLoadError for an invalid option of ``handler``.
        """
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels", True):
            Image.MAX_IMAGE_PIXELS = None
        self._ms_options = VisionOptions.parse(self._ms_handler_settings())
        self._ms_decoders = start_decoders(min(torch.get_num_threads(), MAX_DECODERS))
        if self.device.type == "cuda":
            self._ms_use_gpu(int(context.system_properties.get("batch_size") or 1))
        elif self._ms_options.cuda_graphs or self._ms_options.decode == NVJPEG:
            logger.warning("There is no GPU: handler: decode and cuda_graphs have no effect")

    def _ms_prepare_network(self, model: Any) -> Any:
        # Before anything is compiled or warmed up: code and kernels are those of one memory format.
        if (
            self.device.type == "cuda"
            and self._ms_classic() is not None
            and is_eager(model)
            and NetworkOptions.parse(self.model_yaml_config).optimize
        ):
            self._ms_order = torch.channels_last
            model = model.to(memory_format=self._ms_order)
        return super()._ms_prepare_network(model)

    def _ms_input_shape(self) -> tuple[int, ...] | None:
        """The shape of a prepared picture: channels, height, width; None if only the class knows."""
        processing = self._ms_classic()
        return None if processing is None else (3, processing.crop, processing.crop)

    def preprocess(self, data: Any) -> Any:
        """Rows to one tensor, rejected ones left out; empty if all were. All must have the same shape."""
        rows = list(data)
        processing = self._ms_classic()
        return (
            self._ms_prepare_singly(rows)
            if processing is None
            else self._ms_prepare_together(rows, processing)
        )

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs; a CUDA graph is replayed if one fits the batch."""
        if self._ms_graphs is not None and not args and not kwargs and self._ms_graphs.fits(data):
            return self._ms_graphs(data)
        with self._ms_reject_unfit_tensors(data):
            if self._ms_order is torch.channels_last and isinstance(data, torch.Tensor) and data.dim() == 4:
                data = data.to(self.device).contiguous(memory_format=self._ms_order)
            return super().inference(data, *args, **kwargs)

    @contextlib.contextmanager
    def _ms_reject_unfit_tensors(self, data: Any) -> Iterator[None]:
        """If the network rejects tensors that clients sent instead of pictures, they get the error (400)."""
        try:
            yield
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            reason = self._ms_unfit_reason(data)
            if not reason or isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error):
                raise
            raise PredictionException(reason, 400) from error

    def _ms_unfit_reason(self, data: Any) -> str:
        """What is wrong with the network's input tensors, empty if nothing is: pictures have one shape."""
        expected = self._ms_input_shape()
        if expected is None or not isinstance(data, torch.Tensor):
            return ""
        return unfit(data.shape[1:], data.dtype, expected)

    def _ms_use_gpu(self, batch_size: int) -> None:
        self._ms_copies = CopyStream(self.device)
        processing = self._ms_classic()
        if processing is None:
            return
        if self._ms_options.decode == NVJPEG:
            self._ms_jpeg_decoder = start_decoder(self.device, processing)
        if self._ms_options.cuda_graphs:
            shape = (3, processing.crop, processing.crop)
            sizes = batch_sizes(batch_size)
            self._ms_graphs = record_graphs(
                super().inference, shape, sizes, self.device, self._ms_order, self._ms_warn
            )

    def _ms_classic(self) -> ClassicProcessing | None:
        processing = getattr(self, "image_processing", None)
        return processing if isinstance(processing, ClassicProcessing) else None

    def _ms_handler_settings(self) -> Mapping[str, Any]:
        return handler_settings(self.model_yaml_config)

    def _ms_prepare_together(self, rows: list[Any], processing: ClassicProcessing) -> torch.Tensor:
        """Prepare by ClassicProcessing: crops as bytes, and one tensor of floats that they are written to."""
        buffer: HostCropBuffer | DeviceCropBuffer
        if self._ms_copies is None:
            buffer = HostCropBuffer(processing, len(rows))
            decoded: frozenset[int] = frozenset()
        else:
            buffer = DeviceCropBuffer(processing, len(rows), self._ms_copies, self._ms_order)
            decoded = self._ms_decode_on_gpu(rows, processing, buffer)
        enough = partial(resized, resize=processing.resize) if self._ms_options.fast_decode else None
        mode = self._ms_mode()

        def put_crop(place: int, encoded: bytes) -> torch.Tensor | None:
            picture = open_picture(encoded, mode, enough)
            pixels = processing.pixels(picture)
            if pixels is None:
                prepared: torch.Tensor = processing(picture)
                return prepared
            buffer.put(place, pixels)
            return None

        def prepare(place: int) -> Any:
            return None if place in decoded else self._ms_prepare_row(rows[place], partial(put_crop, place))

        return join(buffer, self._ms_each(prepare, list(range(len(rows)))), self.device)

    def _ms_decode_on_gpu(
        self, rows: list[Any], processing: ClassicProcessing, buffer: DeviceCropBuffer
    ) -> frozenset[int]:
        """Land what nvJPEG can decode; returns the places, none if one is damaged."""
        if self._ms_jpeg_decoder is None or self._ms_mode() != "RGB":
            return frozenset()
        suits = self._ms_jpeg_decoder.suits
        candidates = ((place, _file_of(row)) for place, row in enumerate(rows))
        files = {place: file for place, file in candidates if file is not None and suits(file, processing)}
        try:
            buffer.put_on_device(
                list(files), partial(self._ms_jpeg_decoder.crops, list(files.values()), processing)
            )
        except RuntimeError as error:
            logger.info("nvJPEG left %d pictures to the CPU: %s", len(files), error)
            return frozenset()
        return frozenset(files)

    def _ms_prepare_singly(self, rows: list[Any]) -> Any:
        mode = self._ms_mode()

        def prepare(row: Any) -> Any:
            return self._ms_prepare_row(
                row, lambda encoded: self.image_processing(open_picture(encoded, mode))
            )

        tensors = [each for each in self._ms_each(prepare, rows) if not isinstance(each, BadInput)]
        return self._ms_join(tensors) if tensors else torch.empty(0)

    def _ms_join(self, tensors: list[torch.Tensor]) -> Any:
        """What the network gets for several prepared pictures: here, one tensor on its device."""
        if self._ms_decoders is None:
            return torch.stack(tensors).to(self.device)
        # Made by a single thread: this may run beside inference, which needs the cores more.
        return self._ms_decoders.submit(torch.stack, tensors).result().to(self.device)

    def get_insights(self, tensor_data: torch.Tensor, _inputs: Any, target: Any = 0) -> list[Any]:
        """Integrated gradients of each row as lists; PredictionException (400) for an unknown class."""
        try:
            return list(integrated_gradients(self.model, tensor_data.to(self.device), target).tolist())
        except IndexError:
            raise PredictionException(f"the model has no class {target}", 400) from None

    @cached_property
    def ig(self) -> Any:
        """Captum's IntegratedGradients of the network, for custom handlers; needs Captum."""
        return captum_attributions().IntegratedGradients(self.model)

    def _ms_prepare_row(self, row: Any, process: Callable[[bytes], Any]) -> Any:
        """A row's tensor, what ``process`` makes of its picture, or the BadInput that says what is wrong."""
        try:
            value = picture_input(row)
            return value if isinstance(value, torch.Tensor) else process(value)
        except BadInput as bad:
            # A new one: the frames of its traceback would keep the row's bytes.
            return BadInput(str(bad))

    def _ms_each(self, prepare: Callable[[Any], Any], rows: list[Any]) -> list[Any]:
        """``prepare`` applied to each row, in threads; bad ones are rejected."""
        prepared = list(
            map(prepare, rows) if self._ms_decoders is None else self._ms_decoders.map(prepare, rows)
        )
        for idx, outcome in enumerate(prepared):
            if isinstance(outcome, BadInput):
                self._ms_reject(idx, str(outcome))
        return prepared

    def _ms_mode(self) -> str | None:
        """``picture_mode`` if defined in the class of ``image_processing`` or below: both belong together."""
        for owner in (self, *type(self).__mro__):
            if "picture_mode" in vars(owner):
                return self.picture_mode
            if "image_processing" in vars(owner):
                return None
        return None


def unfit(shape: Sequence[int], dtype: torch.dtype, expected: tuple[int, ...]) -> str:
    """How a tensor differs from those of pictures, for the client, or nothing; -1 is any size."""
    fits = len(shape) == len(expected) and all(
        size > 0 if allowed < 0 else size == allowed for size, allowed in zip(shape, expected, strict=True)
    )
    if fits and dtype.is_floating_point:
        return ""
    kind = str(dtype).removeprefix("torch.")
    return (
        f"the model takes no tensor of shape {list(shape)} and type {kind}: "
        f"those of pictures have {list(expected)} and float32"
    )


def _file_of(row: Any) -> bytes | None:
    try:
        value = picture_input(row)
    except BadInput:
        return None
    return value if isinstance(value, bytes) else None


def start_decoders(count: int) -> ThreadPoolExecutor | None:
    """Threads that decode pictures in parallel, each using one core; None if there is only one core.

    torch's thread count is a thread's own once that thread has used and then set it, but setting it changes
    the default for later threads: so all start now, and the default is restored.
    """
    if count < 2:
        return None
    default = torch.get_num_threads()
    started = Barrier(count + 1)

    def begin() -> None:
        enter_thread()
        torch.get_num_threads()
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="decode")
    for _ in range(count):
        pool.submit(begin)
    started.wait()
    torch.set_num_threads(default)
    return pool
