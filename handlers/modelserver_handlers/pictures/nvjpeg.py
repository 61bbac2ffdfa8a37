"""JPEG files decoded on a GPU by nvJPEG, and the facts in their headers that decide whether they can be."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from modelserver_handlers.pictures.classic import ClassicProcessing
from modelserver_handlers.pictures.resampling import resize_crops

logger = logging.getLogger(__name__)


_START, _END = b"\xff\xd8", b"\xff\xd9"
# Without tables, an extension and arithmetic conditioning.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_8_BIT = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_ADOBE = 0xEE
_SCAN = 0xDA
_STANDALONE = frozenset({0x01, *range(0xD0, 0xDA)})


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """``ordinary``: YCbCr of 8 bits, Huffman coded, and complete: which all decoders read alike."""

    width: int
    height: int
    ordinary: bool


def read_jpeg_header(file: bytes) -> JpegHeader | None:
    """The header of a JPEG file; None for anything else, including a file without a frame."""
    if not file.startswith(_START):
        return None
    at, adobe_transform = 2, 1
    while at + 4 <= len(file) and file[at] == 0xFF:
        marker = file[at + 1]
        if marker == 0xFF or marker in _STANDALONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _SCAN:
            return None
        segment = file[at + 4 : at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")]
        if marker == _ADOBE and segment.startswith(b"Adobe") and len(segment) >= 12:
            adobe_transform = segment[11]
        elif marker in _FRAMES:
            return _frame(marker, segment, complete=file.endswith(_END), is_ycc=adobe_transform == 1)
        at += 2 + max(2, int.from_bytes(file[at + 2 : at + 4], "big"))
    return None


def _frame(marker: int, segment: bytes, *, complete: bool, is_ycc: bool) -> JpegHeader | None:
    if len(segment) < 6:
        return None
    precision, components = segment[0], segment[5]
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    known = marker in _HUFFMAN_8_BIT and precision == 8 and components == 3 and width > 0 and height > 0
    # Without Adobe's segment, the components' names tell libjpeg that it is RGB.
    named = bytes(segment[6::3][:3]) != b"RGB"
    return JpegHeader(width, height, known and is_ycc and named and complete)


MAX_PIXELS = 50_000_000  # of one picture, and of those that are decoded together: 150 MB on the GPU


class JpegDecoder:
    """Decodes and crops on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def suits(self, file: bytes, processing: ClassicProcessing) -> bool:
        """Whether this is a JPEG that nvJPEG decodes as the CPU would."""
        header = read_jpeg_header(file)
        if header is None or not header.ordinary:
            return False
        limit = min(MAX_PIXELS, Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
        size = (header.width, header.height)
        return header.width * header.height <= limit and processing.frame(size) is not None

    def crops(self, files: Sequence[bytes], processing: ClassicProcessing) -> list[torch.Tensor]:
        """The crop of each file, height x width x 3 of uint8 on the GPU. RuntimeError if one is damaged.

        The decoded pictures that are there at once have at most MAX_PIXELS together.
        """
        crops: list[torch.Tensor] = []
        for portion in _portions([_pixels(file) for file in files]):
            if crops and self.device.type == "cuda":
                # nvJPEG's stream does not wait for this one, which may still read memory that is reused.
                torch.cuda.current_stream(self.device).synchronize()
            crops += self._crops(files[portion], processing)
        return crops

    def _crops(self, files: Sequence[bytes], processing: ClassicProcessing) -> list[torch.Tensor]:
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        pictures = decode_on_gpu(encoded, self.device)
        frames = [frame for picture in pictures if (frame := processing.frame(_size(picture)))]
        if len(frames) < len(pictures):
            raise RuntimeError("a picture has another size than its header says")
        return resize_crops(pictures, frames, processing.filter)


def decode_on_gpu(encoded: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """JPEG files (uint8 each, in the CPU's memory) to 3 x height x width of uint8 on the GPU.

    Raises RuntimeError if one is damaged, AttributeError or ImportError where torchvision has no nvJPEG.
    """
    # The operator itself: the function around it warns at each call that it will move to TorchCodec.
    from torchvision.io import ImageReadMode  # noqa: PLC0415 - only needed for nvJPEG

    decoded: list[torch.Tensor] = torch.ops.image.decode_jpegs_cuda(encoded, ImageReadMode.RGB.value, device)
    return decoded


def _size(picture: torch.Tensor) -> tuple[int, int]:
    _, height, width = picture.shape
    return width, height


def _pixels(file: bytes) -> int:
    header = read_jpeg_header(file)
    return 0 if header is None else header.width * header.height


def _portions(pixels: Sequence[int]) -> Iterable[slice]:
    """Places in a row, of pictures with at most MAX_PIXELS together, or of one."""
    start = total = 0
    for place, count in enumerate(pixels):
        if place > start and total + count > MAX_PIXELS:
            yield slice(start, place)
            start, total = place, 0
        total += count
    yield slice(start, len(pixels))


def start_decoder(device: torch.device, processing: ClassicProcessing) -> JpegDecoder | None:
    """A decoder that has decoded a picture; None, with a warning, if there is no nvJPEG."""
    decoder = JpegDecoder(device)
    file = io.BytesIO()
    side = 2 * processing.resize
    Image.new("RGB", (side, side)).save(file, "JPEG")
    try:
        decoder.crops([file.getvalue()], processing)
    except (RuntimeError, AttributeError, ImportError) as error:
        logger.warning("nvJPEG cannot be used, pictures are decoded by the CPU: %s", error)
        return None
    return decoder
