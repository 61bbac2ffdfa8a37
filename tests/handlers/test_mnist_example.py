"""The embedded digit model, as shipped."""

from __future__ import annotations

import base64
import importlib
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.networks.modules import import_file

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "model_store" / "mnist.mar"
EXAMPLE = ROOT / "examples" / "mnist"

# The picture in the documentation of KServe's batcher.
KSERVE_SAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAAAAABXZoBIAAAAw0lEQVR4nGNgGFggVVj4/y8Q2GOR83n+58/fP0DwcSqmpNN7oOTJw6f+"
    "/H2pjUU2JCSEk0EWqN0cl828e/FIxvz9/9cCh1zS5z9/G9mwyzl/+PNnKQ45nyNAr9ThMHQ/UG4tDofuB4bQIhz6fIBenMWJQ+7Vn7+z"
    "eLCbKXv6z59NOPQVgsIcW4QA9YFi6wNQLrKwsBebW/68DJ388Nun5XFocrqvIFH59+XhBAxThTfeB0r+vP/QHbuDCgr2JmOXoSsAAKK7"
    "bU3vISS4AAAAAElFTkSuQmCC"
)

Ask = Callable[[list[Any]], Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Sends rows to the handler in the archive."""
    folder = tmp_path_factory.mktemp("mnist")
    before = set(sys.modules)
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_bytes())
    context = Context("mnist", str(folder), manifest, 8, None, "0.12.0")
    handler = import_file(folder / manifest["model"]["handler"]).DigitClassifier()
    handler.initialize(context)

    def send(rows: list[Any]) -> Any:
        context._ms_begin(BatchState([str(number) for number in range(len(rows))]))
        return handler.handle(rows, context)

    yield send
    for name in set(sys.modules) - before:
        del sys.modules[name]


def encoded(picture: Image.Image) -> bytes:
    """The picture as PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def sample() -> Image.Image:
    """KServe's picture, decoded."""
    return Image.open(io.BytesIO(base64.b64decode(KSERVE_SAMPLE)))


def test_archive_is_small_and_current() -> None:
    """The archive is under a megabyte and holds the example's files as they are."""
    assert ARCHIVE.stat().st_size < 1_000_000
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name in ("model.py", "mnist_handler.py"):
            assert archive.read(name) == (EXAMPLE / name).read_bytes()


def test_the_readmes_sample_is_answered(ask: Ask) -> None:
    """The picture that the README sends is answered 2."""
    file = (EXAMPLE / "digit-2.png").read_bytes()
    picture = Image.open(io.BytesIO(file))

    assert (picture.size, picture.mode, picture.format) == ((28, 28), "L", "PNG")
    assert ask([{"body": bytearray(file)}]) == [2]


def test_forms_share_one_batch(ask: Ask) -> None:
    """Bytes, base64 instances and a bad picture share a batch; the bad one alone has no answer (F17)."""
    file = base64.b64decode(KSERVE_SAMPLE)

    rows = [{"body": file}, {"data": KSERVE_SAMPLE, "target": 0}, {"body": b"x"}, {"b64": KSERVE_SAMPLE}]
    assert ask(rows) == [2, 2, None, 2]


def test_other_pictures_are_brought_to_form(ask: Ask) -> None:
    """Ink on paper, other sizes, colours and margins are brought to MNIST's form."""
    paper = ImageOps.invert(sample())
    wide = ImageOps.expand(paper.resize((200, 200)), border=(150, 20, 60, 90), fill=255)

    rows = [{"body": encoded(one)} for one in (paper, wide, wide.convert("RGB"), wide.convert("RGBA"))]
    assert ask(rows) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "picture", [Image.new("L", (28, 28)), Image.new("L", (50, 9), 255), Image.new("L", (1, 1))]
)
def test_empty_pictures_are_answered(picture: Image.Image, ask: Ask) -> None:
    """A picture without a digit is answered with some digit, not with an error."""
    (answer,) = ask([{"body": encoded(picture)}])

    assert answer in range(10)


def test_held_out_digits_are_named(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 97 % of the digits that training never saw are named rightly, sent as pictures."""
    pytest.importorskip("sklearn")
    functional = importlib.import_module("torchvision.transforms.functional")
    monkeypatch.syspath_prepend(EXAMPLE)
    digits = importlib.import_module("digits")
    learnt, held = digits.split()
    drawn = digits.draw(held.pictures)
    answers = ask([{"body": encoded(functional.to_pil_image(one))} for one in drawn])
    right = sum(answer == label for answer, label in zip(answers, held.labels.tolist(), strict=True))

    assert (len(learnt), len(held)) == (1438, 359)
    assert right / len(held) >= 0.97
