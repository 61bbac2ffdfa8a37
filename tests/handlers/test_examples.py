"""The examples: built or trained from nothing, packed, and called."""

import base64
import contextlib
import importlib
import io
import json
import runpy
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps

from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.networks.modules import import_file
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.text_classifier import TextClassifier
from modelserver_handlers.zoo import random_network

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ARCHIVE = ROOT / "model_store" / "mnist.mar"

# The picture in the documentation of KServe's batcher.
KSERVE_SAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAAAAABXZoBIAAAAw0lEQVR4nGNgGFggVVj4/y8Q2GOR83n+58/fP0DwcSqmpNN7oOTJw6f+"
    "/H2pjUU2JCSEk0EWqN0cl828e/FIxvz9/9cCh1zS5z9/G9mwyzl/+PNnKQ45nyNAr9ThMHQ/UG4tDofuB4bQIhz6fIBenMWJQ+7Vn7+z"
    "eLCbKXv6z59NOPQVgsIcW4QA9YFi6wNQLrKwsBebW/68DJ388Nun5XFocrqvIFH59+XhBAxThTfeB0r+vP/QHbuDCgr2JmOXoSsAAKK7"
    "bU3vISS4AAAAAElFTkSuQmCC"
)


@contextlib.contextmanager
def importing(*folders):
    """Within, modules of an example can be imported; they are forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    sys.path[:0] = map(str, folders)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def unpacked(archive, folder):
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_bytes())
    return Context(manifest["model"]["modelName"], str(folder), manifest, 32, None, "0.12.0")


def handled(handler, rows, **properties):
    ids = [str(number) for number in range(len(rows))]
    handler.context._ms_begin(BatchState(ids, properties=[properties] * len(rows)))
    return handler.handle(rows, handler.context)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with importing():
        context = unpacked(ARCHIVE, tmp_path_factory.mktemp("mnist"))
        folder = Path(context.system_properties["model_dir"])
        handler = import_file(folder / context.manifest["model"]["handler"]).DigitClassifier()
        handler.initialize(context)
        yield partial(handled, handler)


def encoded(picture):
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def sample():
    return Image.open(io.BytesIO(base64.b64decode(KSERVE_SAMPLE)))


def test_archive_is_current_and_answers_the_readmes_sample(ask):
    assert ARCHIVE.stat().st_size < 1_000_000
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name in ("model.py", "mnist_handler.py"):
            assert archive.read(name) == (EXAMPLES / "mnist" / name).read_bytes()

    file = (EXAMPLES / "mnist" / "digit-2.png").read_bytes()
    picture = Image.open(io.BytesIO(file))

    assert (picture.size, picture.mode, picture.format) == ((28, 28), "L", "PNG")
    assert ask([{"body": bytearray(file)}]) == [2]


def test_forms_share_one_batch(ask):
    """Bytes, base64 instances and a bad picture share a batch; the bad one alone has no answer (F17)."""
    file = base64.b64decode(KSERVE_SAMPLE)

    rows = [{"body": file}, {"data": KSERVE_SAMPLE, "target": 0}, {"body": b"x"}, {"b64": KSERVE_SAMPLE}]
    assert ask(rows) == [2, 2, None, 2]


def test_other_pictures_are_brought_to_form(ask):
    paper = ImageOps.invert(sample())
    wide = ImageOps.expand(paper.resize((200, 200)), border=(150, 20, 60, 90), fill=255)

    rows = [{"body": encoded(one)} for one in (paper, wide, wide.convert("RGB"), wide.convert("RGBA"))]
    assert ask(rows) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "picture", [Image.new("L", (28, 28)), Image.new("L", (50, 9), 255), Image.new("L", (1, 1))]
)
def test_empty_pictures_are_answered(picture, ask):
    (answer,) = ask([{"body": encoded(picture)}])
    assert answer in range(10)


def test_held_out_digits_are_named(ask, monkeypatch):
    """At least 97 % of the digits that training never saw are named rightly, sent as pictures."""
    pytest.importorskip("sklearn")
    functional = importlib.import_module("torchvision.transforms.functional")
    monkeypatch.syspath_prepend(EXAMPLES / "mnist")
    digits = importlib.import_module("digits")
    learnt, held = digits.split()
    drawn = digits.draw(held.pictures)
    answers = ask([{"body": encoded(functional.to_pil_image(one))} for one in drawn])
    right = sum(answer == label for answer, label in zip(answers, held.labels.tolist(), strict=True))

    assert (len(learnt), len(held)) == (1438, 359)
    assert right / len(held) >= 0.97


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """The archive that build.py writes, loaded, and its modules."""
    folder = tmp_path_factory.mktemp("detector")
    with importing(EXAMPLES / "detector"):
        build = import_file(EXAMPLES / "detector" / "build.py")
        threads = torch.get_num_threads()
        # Quick on a machine that is busy with other tests too.
        torch.set_num_threads(1)
        model = build.train(200, 0)
        torch.set_num_threads(threads)
        share = build.detection_share(model)
        handler = ObjectDetector()
        handler.initialize(unpacked(build.pack(model, folder), folder))
        yield handler, build, importlib.import_module("shapes"), share


@pytest.mark.slow  # trains a network
def test_the_trained_detector_finds_shapes(detector):
    """Nine of ten shapes in pictures that training never saw are found, and hardly any others."""
    _, build, _, share = detector
    assert share >= build.ENOUGH


@pytest.mark.slow  # trains a network
def test_shapes_of_the_sample_picture_are_detected(detector):
    handler, build, shapes, _ = detector
    _, drawn = shapes.draw_shapes(build.SAMPLE_SEED, (160, 120))
    rows = [{"body": (EXAMPLES / "detector" / "shapes.png").read_bytes()}, {"data": [[[0.9] * 64] * 48] * 3}]
    result, empty = handled(handler, rows)

    expected = sorted((shapes.NAMES[shape.label], shape.box) for shape in drawn)
    boxes = sorted((label, box) for answer in result for label, box in answer.items() if label != "score")
    assert {label for label, _ in expected} == set(shapes.NAMES.values())
    assert [label for label, _ in boxes] == [label for label, _ in expected]
    assert all(build.overlap(b, w) > 0.75 for (_, b), (_, w) in zip(boxes, expected, strict=True))
    assert empty == []


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The archive that build.py writes, loaded, and the sentences."""
    folder = tmp_path_factory.mktemp("text")
    with importing(EXAMPLES / "text"):
        build = import_file(EXAMPLES / "text" / "build.py")
        vocabulary = build.make_vocabulary()
        archive = build.pack(build.train(vocabulary, 150, 0), vocabulary, folder)
        handler = TextClassifier()
        handler.initialize(unpacked(archive, folder))
        yield handler, importlib.import_module("sentences")


def test_sentences_are_named_and_explained(texts):
    handler, sentences = texts
    answers = handled(handler, [{"body": text} for text, _ in sentences.HELD_OUT])

    result = [max(answer, key=answer.get) for answer in answers]
    assert result == [("complaint", "praise")[mood] for _, mood in sentences.HELD_OUT]

    (answer,) = handled(handler, [{"data": "A great book and a boring evening", "target": 1}], explain="True")
    spoke = dict(zip(answer["words"], answer["importances"], strict=True))

    assert spoke["great"] > 0 > spoke["boring"]


BUILD = EXAMPLES / "resnet152" / "build.py"


def run_build(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(BUILD), "--arch", "resnet18", *arguments])
        runpy.run_path(str(BUILD), run_name="__main__")


@pytest.mark.slow  # builds a ResNet-18
def test_an_archive_is_built_by_one_command(tmp_path, pictures):
    run_build("--weights", "random", "--export-path", str(tmp_path))
    context = unpacked(tmp_path / "resnet-18.mar", tmp_path / "model")
    context.model_yaml_config["warmup"] = False
    handler = ImageClassifier()
    handler.initialize(context)
    (answer,) = handled(handler, [{"body": pictures[0]}])

    assert (context.model_name, context.manifest["model"]["handler"]) == ("resnet-18", "image_classifier")
    assert len(answer) == 5
    assert set(answer) <= set((handler.mapping or {}).values())
    assert torch.allclose(
        handler.model.state_dict()["fc.weight"], random_network("resnet18", 0).state_dict()["fc.weight"]
    )


def test_wrong_weights_are_one_line(tmp_path):
    with pytest.raises(SystemExit) as ended:
        run_build("--weights", "BEST", "--export-path", str(tmp_path))

    assert ended.value.code == (
        "resnet18 has no weights BEST; there are IMAGENET1K_V1, DEFAULT, random, or a .pth file"
    )
