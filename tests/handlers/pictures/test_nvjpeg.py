from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from modelserver_handlers.pictures import nvjpeg, resampling
from modelserver_handlers.pictures.classic import MEAN, STD, ClassicProcessing
from modelserver_handlers.pictures.nvjpeg import JpegDecoder, JpegHeader, read_jpeg_header, start_decoder
from modelserver_handlers.pictures.pictures import open_picture


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"comment": b"\xff\xd9" * 9}]
)
def test_baseline_and_progressive_files_are_ordinary(options, picture, encode):
    file = encode(picture(1, (120, 80)), "JPEG", **options)
    assert read_jpeg_header(file) == JpegHeader(120, 80, ordinary=True)


def test_other_colours_and_incomplete_files_are_not_ordinary(picture, encode):
    files = [encode(picture(1).convert(mode), "JPEG") for mode in ("L", "CMYK")]
    files.append(encode(picture(1), "JPEG", keep_rgb=True))

    assert [header.ordinary for file in files if (header := read_jpeg_header(file))] == [False] * 3

    file = encode(picture(1, (120, 80)), "JPEG")

    assert read_jpeg_header(file[:-20]) == JpegHeader(120, 80, ordinary=False)


def test_other_formats_have_no_header(picture, encode):
    file = encode(picture(1), "JPEG")
    assert [read_jpeg_header(each) for each in (encode(picture(1)), b"", file[:3], file[:30])] == [None] * 4


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tail):
    header = read_jpeg_header(b"\xff\xd8" + tail)
    assert header is None or header.width >= 0


PROCESSING = ClassicProcessing(32, 28, MEAN, STD)
DEVICE = torch.device("cpu")


def _decoded(file):
    return pil_to_tensor(open_picture(file, "RGB"))


@pytest.fixture
def played(monkeypatch):
    """torchvision decodes without a GPU; the list says how many files it was given each time."""
    received = []

    def decode(files, device):
        assert device == DEVICE
        received.append(len(files))
        return [_decoded(bytes(file.tolist())) for file in files]

    monkeypatch.setattr(nvjpeg, "decode_on_gpu", decode)
    return received


def test_crops_are_the_processors(played, picture, encode):
    sizes = [(120, 80), (90, 90), (120, 80), (200, 64)]
    files = [encode(picture(seed, size), "JPEG") for seed, size in enumerate(sizes)]
    crops = JpegDecoder(DEVICE).crops(files, PROCESSING)
    expected = [PROCESSING.pixels(open_picture(file, "RGB")) for file in files]

    assert played == [4]
    assert all(one is not None and torch.equal(crop, one) for crop, one in zip(crops, expected, strict=True))


def test_few_at_a_time_are_decoded_the_same(played, monkeypatch, picture, encode):
    sizes = [(120, 80)] * 5 + [(240, 160), (60, 40)]
    files = [encode(picture(seed, size), "JPEG") for seed, size in enumerate(sizes)]
    together = JpegDecoder(DEVICE).crops(files, PROCESSING)
    for module in (nvjpeg, resampling):
        monkeypatch.setattr(module, "MAX_PIXELS", 2 * 120 * 80)
    apart = JpegDecoder(DEVICE).crops(files, PROCESSING)

    assert played == [7, 2, 2, 1, 1, 1]
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))


def test_the_decoder_waits_before_it_reuses_memory(gpus, monkeypatch, picture, encode):
    """Its stream is not ordered after the one that resizes the pictures before."""
    device = torch.device("cuda", 0)
    streams = []

    def decode(files, _device):
        streams.append(gpus.calls.count("current_stream"))
        return [_decoded(bytes(file.tolist())) for file in files]

    monkeypatch.setattr(nvjpeg, "decode_on_gpu", decode)
    monkeypatch.setattr(nvjpeg, "MAX_PIXELS", 120 * 80)
    JpegDecoder(device).crops([encode(picture(seed, (120, 80)), "JPEG") for seed in range(3)], PROCESSING)

    assert streams == [0, 1, 2]


def test_ordinary_jpegs_are_accepted(monkeypatch, picture, encode):
    """Ordinary JPEGs that are neither too small for the crop nor too large for the memory (F17)."""
    decoder = JpegDecoder(DEVICE)
    file = encode(picture(1), "JPEG")
    narrow = ClassicProcessing(20, 28, MEAN, STD)

    assert decoder.suits(file, PROCESSING)
    assert not decoder.suits(encode(picture(1)), PROCESSING)
    assert not decoder.suits(file[:-9], PROCESSING)
    assert not decoder.suits(file, narrow)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert not decoder.suits(file, PROCESSING)


def test_another_size_than_announced_is_refused(monkeypatch):
    monkeypatch.setattr(nvjpeg, "decode_on_gpu", lambda *_: [torch.zeros(3, 4, 300, dtype=torch.uint8)])

    with pytest.raises(RuntimeError, match="another size"):
        JpegDecoder(DEVICE).crops([b"x"], ClassicProcessing(8, 9, MEAN, STD))


def test_a_decoder_is_tried_first(played):
    assert start_decoder(DEVICE, PROCESSING) is not None
    assert played == [1]


@pytest.mark.parametrize("error", [RuntimeError("not compiled with nvJPEG"), AttributeError("no operator")])
def test_missing_nvjpeg_is_logged(error, monkeypatch, caplog):
    monkeypatch.setattr(nvjpeg, "decode_on_gpu", Mock(side_effect=error))

    assert start_decoder(DEVICE, PROCESSING) is None
    assert "nvJPEG cannot be used" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_pixels_are_close(picture, encode):
    device = torch.device("cuda")
    decoder = start_decoder(device, PROCESSING)
    file = encode(picture(1), "JPEG", quality=95)
    (crop,) = decoder.crops([file], PROCESSING)
    expected = PROCESSING.pixels(open_picture(file, "RGB"))

    assert (crop.cpu().int() - expected.int()).abs().float().mean() < 3
