import io
import json
import threading
import weakref
from unittest.mock import MagicMock

import pytest
import torch
from PIL import Image
from tests.handlers.conftest import Body, Played
from tests.handlers.parts import network
from torchvision.transforms import functional

from modelserver.engine.wire.messages import INSTANCE, Load, Predict, Row
from modelserver.engine.worker.service import Service
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.handler_options import VisionOptions
from modelserver_handlers.image_classifier import ImageClassifier, classic_processing
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.metrics.collected import HandlerMetrics
from modelserver_handlers.networks.device import choose_device
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.vision import VisionHandler, start_decoders


def small(picture):
    """Any picture to channels x 4 x 4."""
    return functional.to_tensor(picture.resize((4, 4)))


class Plain(VisionHandler):
    """Processing of its own, no mode; the model is the mean of each picture."""

    image_processing = staticmethod(small)

    def _ms_load_model(self, model_dir):
        return lambda batch: batch.flatten(1).mean(dim=1)


class Coloured(Plain):
    picture_mode = "RGB"


@pytest.fixture
def handler(make_context, tmp_path):
    made = Coloured()
    made.initialize(make_context(tmp_path))
    return made


@pytest.fixture
def pixel_limit():
    limit = Image.MAX_IMAGE_PIXELS
    yield
    Image.MAX_IMAGE_PIXELS = limit


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("bad", [b"not a picture", "@@@", {"data": None}])
def test_one_bad_picture_is_rejected_alone(position, bad, handler, pictures, begin):
    """At each position a bad picture is rejected alone; its neighbours are answered as ever (F17, F18)."""
    good = [{"body": file} for file in pictures[:3]]
    begin(handler.context, 3)
    expected = handler.handle(good, handler.context)
    mixed = [*good[:position], {"body": bad} if not isinstance(bad, dict) else bad, *good[position:]]
    begin(handler.context, 4)
    answers = handler.handle(mixed, handler.context)

    assert answers.pop(position) is None
    assert answers == pytest.approx(expected, rel=1e-6)
    status, message = handler.context._ms_rejections[position]
    assert (list(handler.context._ms_rejections), status) == ([position], 400)
    assert "picture" in message


@pytest.mark.parametrize("threads", [1, 2])
def test_bad_pictures_do_not_stay(threads, handler, begin, collects_nothing):
    begin(handler.context, 2)
    handler._ms_decoders = start_decoders(threads) if threads > 1 else None
    body = Body(b"not a picture")
    remains = weakref.ref(body)
    handler.preprocess([{"body": b"neither"}, {"body": body}])
    del body

    assert remains() is None


def test_bad_pictures_do_not_reach_the_model(handler, begin):
    """A batch of bad pictures is answered without the model (F20)."""
    begin(handler.context, 2)

    assert handler.handle([{"body": b"x"}, {"body": b"y"}], handler.context) == [None, None]
    assert len(handler.context._ms_rejections) == 2


def test_threads_do_not_change_numbers(handler, pictures, begin):
    rows = [{"body": file} for file in pictures * 3]
    handler._ms_decoders = start_decoders(4)
    together = handler.preprocess(rows)
    handler._ms_decoders = None

    assert torch.equal(together, handler.preprocess(rows))


def test_decoders_use_one_core_each():
    before = torch.get_num_threads()
    seen = []
    torch.set_num_threads(3)
    try:
        pool = start_decoders(2)
        inside = list(pool.map(lambda _: torch.get_num_threads(), range(8)))
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()

        assert set(inside) == {1}
        assert (torch.get_num_threads(), seen) == (3, [3])
    finally:
        torch.set_num_threads(before)


def test_decoders_use_the_gpu_and_several_cores(gpus):
    gpus.count = 2
    choose_device(1)
    pool = start_decoders(3)

    assert set(pool.map(lambda _: gpus.current, range(9))) == {1}

    assert start_decoders(1) is None


def test_processing_of_the_class_or_the_object_counts(pictures, encode, picture):
    class Grey(ImageClassifier):
        image_processing = staticmethod(small)

    class Sized(ImageClassifier):
        topk = 1

    file = encode(picture(1).convert("L"))

    assert Grey().preprocess([{"body": file}]).shape == (1, 1, 4, 4)
    assert Plain().preprocess([{"body": file}]).shape == (1, 1, 4, 4)
    assert Coloured().preprocess([{"body": file}]).shape == (1, 3, 4, 4)
    assert Sized().preprocess([{"body": file}]).shape == (1, 3, 224, 224)

    handler = ImageClassifier()
    handler.image_processing = small

    assert handler.preprocess([{"body": file}]).shape == (1, 1, 4, 4)


@pytest.mark.usefixtures("pixel_limit")
def test_the_pixel_limit_holds(make_context, tmp_path, encode, picture, begin):
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


def test_explanations_have_the_shape_of_pictures(handler, pictures, begin):
    handler.model = lambda batch: batch.flatten(1)[:, :3]
    begin(handler.context, 2, explain="True")
    rows = [{"body": pictures[0], "target": 1}, {"body": pictures[1], "target": b"2"}]
    first, second = handler.handle(rows, handler.context)

    assert torch.tensor(first).flatten().nonzero().flatten().tolist() == [1]
    assert torch.tensor(second).flatten().nonzero().flatten().tolist() == [2]
    with pytest.raises(PredictionException, match="no class 5"):
        handler.handle([{"body": pictures[0], "target": 5}], handler.context)


class PlayedDecoder:
    """Takes the part of nvJPEG, for files with the right beginning; ``damaged`` makes it fail."""

    def __init__(self, damaged=False):
        self.damaged = damaged
        self.received = []

    def suits(self, file, _processing):
        return file.startswith(b"\xff\xd8")

    def crops(self, files, processing):
        self.received.append(len(files))
        if self.damaged:
            raise RuntimeError("a marker is missing")
        return [torch.full((processing.crop, processing.crop, 3), 128, dtype=torch.uint8) for _ in files]


@pytest.fixture
def classifier(request):
    """Prepares for a GPU if the test's parameter says so."""
    made = ImageClassifier()
    if getattr(request, "param", "gpu") == "gpu":
        made._ms_copies = Played()
    return made


def one_by_one(files):
    steps = classic_processing()
    return torch.stack([steps(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])


@pytest.mark.parametrize("classifier", ["cpu", "gpu"], indirect=True)
def test_batches_hold_torchvisions_numbers(classifier, pictures):
    batch = classifier.preprocess([{"body": file} for file in pictures])
    assert torch.equal(batch, one_by_one(pictures))


@pytest.mark.parametrize("classifier", ["cpu", "gpu"], indirect=True)
@pytest.mark.parametrize("position", range(3))
def test_a_bad_row_is_rejected_beside_numbers(position, classifier, pictures, make_context, tmp_path, begin):
    """A bad row is rejected alone, numbers may stand beside pictures (F17, F18)."""
    classifier.context = make_context(tmp_path)
    numbers = torch.full((3, 224, 224), 0.25)
    rows = [{"body": pictures[0]}, {"data": numbers.tolist()}, {"body": pictures[1]}]
    rows.insert(position, {"body": b"no picture"})
    begin(classifier.context, 4)
    batch = classifier.preprocess(rows)
    first, second = one_by_one(pictures[:2])

    assert list(classifier.context._ms_rejections) == [position]
    assert torch.equal(batch, torch.stack([first, numbers, second]))


def test_small_pictures_take_the_long_way(classifier, encode, picture):
    classifier.image_processing = classic_processing(100, 224)
    files = [encode(picture(1, (300, 120))), encode(picture(2, (300, 300)))]
    steps = classic_processing(100, 224)
    expected = torch.stack([steps(Image.open(io.BytesIO(file))) for file in files])

    assert torch.equal(classifier.preprocess([{"body": file} for file in files]), expected)


def test_jpegs_are_decoded_on_the_gpu(classifier, pictures):
    decoder = PlayedDecoder()
    classifier._ms_jpeg_decoder = decoder
    batch = classifier.preprocess([{"body": file} for file in pictures])
    expected = one_by_one(pictures)
    jpegs = [place for place, file in enumerate(pictures) if file.startswith(b"\xff\xd8")]
    for place in jpegs:
        expected[place] = classic_processing().normalise(torch.full((1, 224, 224, 3), 128, dtype=torch.uint8))

    assert decoder.received == [len(jpegs)] == [2]
    assert torch.equal(batch, expected)
    # A damaged one is found by the processor, which decodes all of them (F17).
    classifier._ms_jpeg_decoder = PlayedDecoder(damaged=True)
    assert torch.equal(classifier.preprocess([{"body": file} for file in pictures]), one_by_one(pictures))


def test_fast_decoding_changes_large_jpegs_little(classifier, encode, picture):
    files = [encode(picture(1, (1200, 900)), "JPEG"), encode(picture(2), "JPEG"), encode(picture(3))]
    classifier._ms_options = VisionOptions(fast_decode=True)
    large, *others = classifier.preprocess([{"body": file} for file in files])
    exact = one_by_one(files)

    assert torch.equal(torch.stack(others), exact[1:])
    assert 0 < (large - exact[0]).abs().mean() < 0.1


def test_gpu_options_have_no_effect_without_one(make_context, tmp_path, caplog):
    handler = Coloured()
    handler.initialize(make_context(tmp_path, {"handler": {"decode": "nvjpeg", "cuda_graphs": True}}))

    assert caplog.messages[-1] == "There is no GPU: handler: decode and cuda_graphs have no effect"
    assert handler._ms_copies is None


def test_graphs_answer_what_fits(classifier):
    graphs = MagicMock(side_effect=lambda batch: torch.full((len(batch),), -1.0))
    graphs.fits = lambda batch: len(batch) <= 2
    classifier.model = lambda batch, scale=1.0: batch.sum(dim=1) * scale
    classifier.device = torch.device("cpu")
    classifier._ms_graphs = graphs

    assert classifier.inference(torch.ones(2, 3)).tolist() == [-1.0, -1.0]
    assert classifier.inference(torch.ones(3, 3)).tolist() == [3.0] * 3
    assert classifier.inference(torch.ones(2, 3), scale=2.0).tolist() == [6.0, 6.0]


def test_the_shape_of_an_input_is_known(handler):
    classifier = ImageClassifier()
    assert classifier._ms_input_shape() == (3, 224, 224)
    classifier.image_processing = classic_processing(64, 48)

    assert classifier._ms_input_shape() == (3, 48, 48)
    assert handler._ms_input_shape() is None


OUTPUTS = {
    ImageClassifier: "self.layer(pictures).mean((2, 3))",
    ImageSegmenter: "self.layer(pictures)",
    ObjectDetector: "[{'boxes': torch.zeros(1, 4), 'labels': torch.ones(1),"
    " 'scores': self.layer(each[None]).mean().sigmoid()[None]} for each in pictures]",
}
SMALL = {"warmup": False, "optimize": "off", "handler": {"resize": 40, "crop": 32}}
FITTING = [[[0.5] * 32] * 32] * 3
ODD = {
    "one dimension": [1.0, 2.0, 3.0],
    "two dimensions": [[0.5] * 32] * 32,
    "one channel": [[[0.5] * 32] * 32],
    "channels last": [[[0.5] * 3] * 40] * 40,
    "nothing": [[], [], []],
}


def serve(handler, context, rows):
    """Status and content of the answers to V1 instances that share a batch."""
    service = Service(handler.handle, context, Load("m", "1", "/", "h", 8), HandlerMetrics("m"))
    bodies = [json.dumps(row).encode() for row in rows]
    sent = [Row(f"id{n}", len(body), INSTANCE) for n, body in enumerate(bodies)]
    work = service.take(Predict(0, sent), memoryview(b"".join(bodies)))
    service.run(work)
    return [(answer[0].status, answer[1]) for answer in work.answers if answer is not None]


@pytest.mark.parametrize("made", OUTPUTS)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_only_the_odd_one_is_refused(made, odd, tmp_path, make_context):
    name = f"picky_{tmp_path.name.replace('-', '_')}.py"
    layer = "nn.Conv2d(3, 4, 3, stride=32)"
    (tmp_path / name).write_text(network("Picky", OUTPUTS[made], "pictures", layer=layer))
    handler = made()
    context = make_context(tmp_path, SMALL, modelFile=name)
    handler.initialize(context)

    (first, _), (status, message), (last, _) = serve(handler, context, [FITTING, odd, FITTING])
    assert (first, last) == (200, 200)
    assert status == 400
    assert b"takes no tensor of shape" in message


def test_a_network_that_fails_is_not_the_clients_fault(tmp_path, make_context):
    name = f"broken_{tmp_path.name.replace('-', '_')}.py"
    (tmp_path / name).write_text(
        "import torch\nclass Broken(torch.nn.Module):\n"
        "    def forward(self, pictures):\n        raise RuntimeError('bug')\n"
    )
    handler = ImageClassifier()
    context = make_context(tmp_path, SMALL, modelFile=name)
    handler.initialize(context)

    assert serve(handler, context, [FITTING])[0][0] == 500
