"""What a GPU server is compared with, in a process of its own.

``chip`` computes batches that are on the device
already, with batch norms that are not folded, like the server's; ``decode`` makes network inputs of JPEGs,
on all cores or on the GPU; ``serial`` works as TorchServe does: decode, transform, copy, run, one after the
other, in one thread.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.loops import Work, options_of_process, rate_of, serve
from modelserver.engine.resources import usable_cpus

KINDS = ("chip", "decode", "serial")
PRECISIONS = ("fp32", "tf32", "bf16")
TRIAL_SECONDS = 0.3


class GpuWorks:
    """The network and the pictures, and the three kinds of work with them. Torch comes with it."""

    def __init__(self, options: SimpleNamespace) -> None:
        import torch  # noqa: PLC0415 - only the looping process needs it

        from modelserver_handlers.image_classifier import classic_processing  # noqa: PLC0415
        from modelserver_handlers.zoo import random_network  # noqa: PLC0415

        self._torch = torch
        self._options = options
        self.device = torch.device(options.device)
        self._type = torch.bfloat16 if options.precision == "bf16" else torch.float32
        exact = options.precision == "fp32"
        torch.backends.cudnn.allow_tf32 = not exact
        torch.set_float32_matmul_precision("highest" if exact else "high")
        self._processing = classic_processing()
        self._files = [Path(options.image).read_bytes()] * options.batch
        self._network = random_network(options.arch, 0).to(self.device)

    def describe(self) -> str:
        """The device in words."""
        if self.device.type == "cuda":
            return str(self._torch.cuda.get_device_name(self.device))
        return f"{usable_cpus()} cores"

    def work(self, kind: str) -> Work:
        """One of KINDS, to be repeated."""
        if kind == "chip":
            return self._chip()
        if kind == "decode":
            on_gpu = self._options.decode == "nvjpeg" and self.device.type == "cuda"
            return self._decode_on_gpu() if on_gpu else self._decode()
        return self._repeated(self._serial)

    def _repeated(self, call: Callable[[], object]) -> Work:
        return Work(call, self._options.batch, self._wait)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)

    def _chip(self) -> Work:
        """The faster of the two orders of memory, with the fastest algorithms that cuDNN finds.

        Batch normalisation is a layer of its own: a server that folds it into convolutions may be faster.
        """
        torch = self._torch
        torch.backends.cudnn.benchmark = True
        orders = (torch.contiguous_format, torch.channels_last)
        forms = [self._repeated(partial(self._forward, *self._in_order(order))) for order in orders]
        rates = [rate_of(form, TRIAL_SECONDS) for form in forms]
        torch.backends.cudnn.benchmark = False
        return forms[rates.index(max(rates))]

    def _in_order(self, order: Any) -> tuple[Any, Any]:
        import copy  # noqa: PLC0415

        network = copy.deepcopy(self._network).to(self._type).to(memory_format=order)
        batch = self._torch.randn(self._options.batch, 3, 224, 224, device=self.device)
        return network, batch.to(self._type).contiguous(memory_format=order)

    def _forward(self, network: Any, batch: Any) -> object:
        with self._torch.inference_mode():
            return network(batch)

    def _decode(self) -> Work:
        from modelserver_handlers.pictures.pictures import open_picture  # noqa: PLC0415

        processing = self._processing
        enough = processing.resized_size if self._options.fast_decode else None
        pool = ThreadPoolExecutor(usable_cpus())

        def crop(file: bytes) -> object:
            return processing.pixels(open_picture(file, "RGB", enough))

        # Many pictures at a time: cores wait for the last of them only.
        files = self._files * math.ceil(8 * usable_cpus() / len(self._files))
        return Work(lambda: list(pool.map(crop, files)), len(files), self._wait)

    def _decode_on_gpu(self) -> Work:
        from modelserver_handlers.pictures.nvjpeg import JpegDecoder  # noqa: PLC0415

        return self._repeated(partial(JpegDecoder(self.device).crops, self._files, self._processing))

    def _serial(self) -> object:
        from PIL import Image  # noqa: PLC0415

        torch = self._torch
        opened = (Image.open(io.BytesIO(file)).convert("RGB") for file in self._files)
        batch = torch.stack([self._processing(picture) for picture in opened]).to(self.device)
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, self._type, self._type != torch.float32),
        ):
            scores = torch.softmax(self._network(batch).float(), dim=1)
        best, classes = torch.topk(scores, 5, dim=1)
        return list(zip(best.tolist(), classes.tolist(), strict=True))


def main() -> None:
    """Answer the lines of standard input until it ends."""
    works = GpuWorks(options_of_process())
    serve(works.describe(), works.work)


if __name__ == "__main__":
    main()
