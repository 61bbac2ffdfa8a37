"""The built-in handlers over real processes: batches of several clients, bad inputs among them."""

import base64
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from tests.handlers.parts import SUM

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver_handlers.image_classifier import ImageClassifier

pytestmark = pytest.mark.slow  # imports torch

DETECTOR = """
import torch

class TinyDetection(torch.nn.Module):
    def forward(self, pictures):
        return [
            {
                "boxes": torch.tensor([[0.0, 0.0, picture.shape[2], picture.shape[1]]]),
                "labels": torch.tensor([1]),
                "scores": torch.tensor([0.75]),
            }
            for picture in pictures
        ]
"""
DENSENET = r"""
import re

from torchvision.models import DenseNet

NUMBERED = re.compile(r"(.*denselayer\d+\.(?:norm|conv))\.(\d\..*)")


class ImageClassifier(DenseNet):
    def __init__(self):
        super().__init__(growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=7)

    def load_state_dict(self, state_dict, strict=True):
        for key in [key for key in state_dict if NUMBERED.match(key)]:
            state_dict[NUMBERED.sub(r"\1\2", key)] = state_dict.pop(key)
        return super().load_state_dict(state_dict, strict)
"""


@pytest.fixture
def register(shared_server, model_store, tmp_path):
    def registered(name, handler, source, *extra, workers=1, delay=400, **files):
        model = tmp_path / f"{name}_model.py"
        model.write_text(source)
        files |= {"model_file": model, "extra_files": ",".join(map(str, extra)) or None}
        build_archive(ArchiveConfig(name, handler, "1.0", export_path=model_store, **files))
        bounds = {"batch_size": 4, "max_batch_delay": delay, "initial_workers": workers}
        response = shared_server.register(f"{name}.mar", **bounds)
        assert response.status_code == 200, response.text
        return response.json()

    return registered


def picture(width, height):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 150)).save(buffer, "PNG")
    return buffer.getvalue()


def together(server, name, bodies):
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda body: server.predict(name, body), bodies))


def test_bad_picture_fails_alone(shared_server, register, tmp_path):
    """Pictures of four sizes, one of them none, are answered as one batch (F17, F18); V1 and V2 take them in
    base64. What cannot be explained is a 501 that says so.
    """
    labels = tmp_path / "index_to_name.json"
    labels.write_text(json.dumps({"1": "one"}))
    register("detector", "object_detector", DETECTOR, labels)
    sizes = [(20, 10), (30, 40), None, (50, 60)]
    responses = together(shared_server, "detector", [b"none" if s is None else picture(*s) for s in sizes])
    text = base64.b64encode(picture(30, 40)).decode()
    by_v1 = shared_server.v1("detector", [{"data": text}, {"b64": text}])
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    infer = "/v2/models/detector/infer"
    by_v2 = shared_server.inference.post(infer, json={"inputs": [tensor]})
    bad = shared_server.inference.post(
        infer, json={"inputs": [{**tensor, "shape": [2], "data": [text, "bm9uZQ=="]}]}
    )
    unexplained = shared_server.inference.post("/explanations/detector", content=picture(30, 30))
    metadata = shared_server.inference.get("/v2/models/detector").json()
    boxes = [{"one": [0.0, 0.0, 30.0, 40.0], "score": 0.75}]

    assert [response.status_code for response in responses] == [200, 200, 400, 200]
    assert responses[1].json() == boxes
    assert responses[3].json() == [{"one": [0.0, 0.0, 50.0, 60.0], "score": 0.75}]
    assert "not a picture" in responses[2].json()["message"]
    assert by_v1.json()["predictions"] == [boxes, boxes]
    assert [json.loads(each) for each in by_v2.json()["outputs"][0]["data"]] == [boxes]
    assert (bad.status_code, bad.json()["error"].startswith("row 1: ")) == (400, True)
    assert (unexplained.status_code, "explains nothing" in unexplained.json()["message"]) == (501, True)
    assert metadata["inputs"] == [{"name": "input_0", "datatype": "BYTES", "shape": [-1]}]


def test_base_handler_gets_numbers_as_tensors(shared_server, register):
    """JSON numbers in each form that clients send become tensors, over /predictions and V1. If an archive has
    no weights, the registration, the description and a line of the log report it.
    """
    (warning,) = register("numbers", "base_handler", SUM, delay=1, workers=2)["warnings"]
    assert warning.startswith("The archive has no weights (--serialized-file)")
    assert shared_server.describe("numbers")["warnings"] == [warning]
    assert shared_server.home.log().count(warning) == 1
    row = [1, 2, 3, 4]

    def predict(**body):
        return shared_server.inference.post("/predictions/numbers", **body).json()

    assert predict(json=row) == [10.0]
    assert predict(json={"data": row}) == [10.0]
    assert predict(json={"instances": [row, row]}) == {"predictions": [[10.0], [10.0]]}
    assert predict(content=b"[1, 2, 3, 4]") == [10.0]
    assert predict(json=["one"])["code"] == 400
    by_v1 = shared_server.v1("numbers", [row, {"data": row}, {"x": row}])
    assert by_v1.json()["predictions"] == [[10.0]] * 3


def test_a_densenet_with_weights_of_old_names(shared_server, register, tmp_path):
    """Its model file, which renames them while they are loaded, is served as in TorchServe's first example:
    every worker of ``image_classifier`` answers what the network computes without a server.
    """
    from torchvision.models import DenseNet

    torch.manual_seed(0)
    network = DenseNet(8, (2, 2), 16, num_classes=7).eval()
    numbered = re.compile(r"(.*denselayer\d+\.(?:norm|conv))(\d\..*)")
    old = {numbered.sub(r"\1.\2", key): value for key, value in network.state_dict().items()}
    assert old.keys() != network.state_dict().keys()
    weights = tmp_path / "densenet-old.pth"
    torch.save(old, weights)
    register("densenet", "image_classifier", DENSENET, workers=2, delay=1, serialized_file=weights)
    sizes = [(300, 260), (256, 400)] * 4
    responses = together(shared_server, "densenet", [picture(*size) for size in sizes])

    for response, size in zip(responses, sizes, strict=True):
        pixels = ImageClassifier.image_processing(Image.open(io.BytesIO(picture(*size))))
        with torch.inference_mode():
            scores = network(pixels.unsqueeze(0)).softmax(dim=1)[0]
        best = scores.topk(5)
        assert list(response.json()) == [str(index) for index in best.indices.tolist()]
        assert list(response.json().values()) == pytest.approx(best.values.tolist(), rel=1e-4)
