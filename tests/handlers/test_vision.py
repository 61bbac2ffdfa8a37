"""VisionHandler: many pictures side by side, bad ones alone."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.vision import VisionHandler, start_decoders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def small(picture: Image.Image) -> torch.Tensor:
    """Any picture to channels x 4 x 4."""
    tensor: torch.Tensor = functional.to_tensor(picture.resize((4, 4)))
    return tensor


class Plain(VisionHandler):
    """Processing of its own, no mode; the model is the mean of each picture."""

    image_processing = staticmethod(small)

    def _load_model(self, model_dir: str) -> Any:
        return lambda batch: batch.flatten(1).mean(dim=1)


class Coloured(Plain):
    """Says which mode it wants."""

    picture_mode = "RGB"


@pytest.fixture
def handler(make_context: Any, tmp_path: Path) -> Coloured:
    """A handler ready for batches."""
    made = Coloured()
    made.initialize(make_context(tmp_path))
    return made


@pytest.fixture
def pixel_limit() -> Iterator[None]:
    """Puts Pillow's limit back."""
    limit = Image.MAX_IMAGE_PIXELS
    yield
    Image.MAX_IMAGE_PIXELS = limit


def test_rows_of_every_kind(handler: Coloured, pictures: list[bytes], begin: Any) -> None:
    """Raw bytes, base64 and numbers share a batch; its rows are the pictures in order."""
    numbers = torch.full((3, 4, 4), 0.5).tolist()
    rows = [
        {"body": bytearray(pictures[0])},
        {"data": base64.b64encode(pictures[1]).decode()},
        {"data": numbers},
    ]
    begin(handler.context, 3)
    batch = handler.preprocess(rows)

    assert batch.shape == (3, 3, 4, 4)
    assert torch.equal(batch[0], handler.preprocess(rows[:1])[0])
    assert torch.equal(batch[2], torch.full((3, 4, 4), 0.5))


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("bad", [b"not a picture", "@@@", {"data": None}])
def test_one_bad_picture(
    position: int, bad: Any, handler: Coloured, pictures: list[bytes], begin: Any
) -> None:
    """At each position a bad picture is rejected alone; its neighbours are answered as ever (F17, F18)."""
    good: list[Any] = [{"body": file} for file in pictures[:3]]
    begin(handler.context, 3)
    expected = handler.handle(good, handler.context)
    mixed = [*good[:position], {"body": bad} if not isinstance(bad, dict) else bad, *good[position:]]
    begin(handler.context, 4)
    answers = handler.handle(mixed, handler.context)

    assert answers.pop(position) is None
    assert answers == pytest.approx(expected, rel=1e-6)
    status, message = handler.context.rejections[position]
    assert (list(handler.context.rejections), status) == ([position], 400)
    assert "picture" in message


def test_all_bad(handler: Coloured, begin: Any) -> None:
    """A batch of bad pictures is answered without the model (F20)."""
    begin(handler.context, 2)

    assert handler.handle([{"body": b"x"}, {"body": b"y"}], handler.context) == [None, None]
    assert len(handler.context.rejections) == 2


def test_without_reject_the_batch_fails(handler: Coloured) -> None:
    """Under a context that cannot reject one row, a bad picture is an error with status 400."""
    handler.context = None

    with pytest.raises(PredictionException) as error:
        handler.preprocess([{"body": b"x"}])
    assert error.value.error_code == 400


def test_threads_do_not_change_numbers(handler: Coloured, pictures: list[bytes], begin: Any) -> None:
    """Decoding side by side gives the same tensor as one after the other."""
    rows = [{"body": file} for file in pictures * 3]
    handler._decoders = start_decoders(4)
    together = handler.preprocess(rows)
    handler._decoders = None

    assert torch.equal(together, handler.preprocess(rows))


def test_decoders_use_one_core_each() -> None:
    """Decoders run torch on one core, and neither this thread nor later ones lose theirs."""
    before = torch.get_num_threads()
    seen: list[int] = []
    torch.set_num_threads(3)
    try:
        pool = start_decoders(2)
        assert pool is not None
        inside = list(pool.map(lambda _: torch.get_num_threads(), range(8)))
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()

        assert set(inside) == {1}
        assert (torch.get_num_threads(), seen) == (3, [3])
    finally:
        torch.set_num_threads(before)


def test_one_core_needs_no_decoders() -> None:
    """On one core pictures are decoded where they are asked for."""
    assert start_decoders(1) is None


def test_conversion_is_each_class_own(pictures: list[bytes], encode: Any, picture: Any) -> None:
    """A class with processing of its own and no mode gets pictures as the file has them."""

    class Grey(ImageClassifier):
        """The processing of TorchServe's own digit example."""

        image_processing = staticmethod(small)

    class Sized(ImageClassifier):
        """Changes nothing about pictures."""

        topk = 1

    file = encode(picture(1).convert("L"))

    assert Grey().preprocess([{"body": file}]).shape == (1, 1, 4, 4)
    assert Plain().preprocess([{"body": file}]).shape == (1, 1, 4, 4)
    assert Coloured().preprocess([{"body": file}]).shape == (1, 3, 4, 4)
    assert Sized().preprocess([{"body": file}]).shape == (1, 3, 224, 224)


def test_processing_set_on_the_object(encode: Any, picture: Any) -> None:
    """Processing that a handler sets in its own initialize counts like one on its class."""
    handler = ImageClassifier()
    handler.image_processing = small  # type: ignore[method-assign,assignment]

    assert handler.preprocess([{"body": encode(picture(1).convert("L"))}]).shape == (1, 1, 4, 4)


@pytest.mark.usefixtures("pixel_limit")
def test_pixel_limit(make_context: Any, tmp_path: Path, encode: Any, picture: Any, begin: Any) -> None:
    """Pillow's limit holds unless ``limit_max_image_pixels`` is false (F17)."""
    file = encode(picture(1))
    handler = Coloured()
    handler.initialize(make_context(tmp_path))
    Image.MAX_IMAGE_PIXELS = 1000
    begin(handler.context)
    assert handler.handle([{"body": file}], handler.context) == [None]
    handler.initialize(make_context(tmp_path, pixels=False))
    begin(handler.context)

    assert handler.handle([{"body": file}], handler.context) != [None]
    assert Image.MAX_IMAGE_PIXELS is None


def test_explanations(handler: Coloured, pictures: list[bytes], begin: Any) -> None:
    """Explanations have the shape of the prepared picture, and say 400 for a class that there is not."""
    handler.model = lambda batch: batch.flatten(1)[:, :3]
    begin(handler.context, 2, explain="True")
    rows = [{"body": pictures[0], "target": 1}, {"body": pictures[1], "target": b"2"}]
    first, second = handler.handle(rows, handler.context)

    assert torch.tensor(first).flatten().nonzero().flatten().tolist() == [1]
    assert torch.tensor(second).flatten().nonzero().flatten().tolist() == [2]
    with pytest.raises(PredictionException, match="no class 5"):
        handler.handle([{"body": pictures[0], "target": 5}], handler.context)
