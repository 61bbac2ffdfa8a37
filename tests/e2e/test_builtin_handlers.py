"""The built-in handlers over real processes: batches of several clients, bad inputs among them."""

from __future__ import annotations

import base64
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from torchvision.models import DenseNet

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver_handlers.image_classifier import ImageClassifier

pytestmark = pytest.mark.slow

NETWORKS = {
    "segmenter": """
import torch

class TinySegmentation(torch.nn.Module):
    def forward(self, pictures):
        return {"out": torch.stack((pictures.mean(1), pictures.amax(1)), dim=1)}
""",
    "detector": """
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
""",
    "texts": """
from torch import nn

class TinyText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(4, 2, mode="sum")
        with __import__("torch").no_grad():
            self.embedding.weight[:] = __import__("torch").tensor([[0.0, 0.0], [1, 0], [0, 2], [3, 3]])

    def forward(self, ids, offsets):
        return self.embedding(ids, offsets)
""",
}
HANDLERS = {"segmenter": "image_segmenter", "detector": "object_detector", "texts": "text_classifier"}


def picture(width, height):
    """A grey picture as a file."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 150)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def server(shared_server, model_store, tmp_path_factory):
    """A server with each of them, in batches of up to four."""
    folder = tmp_path_factory.mktemp("networks")
    torch.save(["the", "cat", "sat", "the cat"], folder / "source_vocab.pt")
    (folder / "index_to_name.json").write_text(json.dumps({"0": "zero", "1": "one"}))
    (folder / "model-config.yaml").write_text("handler: {resize: 32, crop: 24}\n")
    for name, source in NETWORKS.items():
        (folder / f"tiny_{name}.py").write_text(source)
        files = ["index_to_name.json", *(["source_vocab.pt"] if name == "texts" else [])]
        build_archive(
            ArchiveConfig(
                name,
                HANDLERS[name],
                "1.0",
                model_file=folder / f"tiny_{name}.py",
                extra_files=",".join(str(folder / file) for file in files),
                config_file=folder / "model-config.yaml",
                export_path=model_store,
            )
        )
        shared_server.registered(f"{name}.mar", batch_size=4, max_batch_delay=400)
    return shared_server


def together(server, name, bodies):
    """The answers to bodies that are sent at the same time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda body: server.predict(name, body), bodies))


def test_detector(server):
    """Pictures of four sizes, one of them none, are answered as one batch (F17, F18)."""
    sizes = [(20, 10), (30, 40), None, (50, 60)]
    answers = together(server, "detector", [b"none" if s is None else picture(*s) for s in sizes])

    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    assert answers[1].json() == [{"one": [0.0, 0.0, 30.0, 40.0], "score": 0.75}]
    assert answers[3].json() == [{"one": [0.0, 0.0, 50.0, 60.0], "score": 0.75}]
    assert "not a picture" in answers[2].json()["message"]


def test_segmenter(server):
    """V1 instances in base64 are answered one list of pixels each."""
    encoded = base64.b64encode(picture(64, 48)).decode()
    found = torch.tensor(server.v1("segmenter", [{"data": encoded}, {"b64": encoded}]).json()["predictions"])

    assert found.shape == (2, 24, 24, 2)
    assert (found[..., 0] == 1).all()


def test_texts(server):
    """Texts of four clients are classified as one batch; an undecodable one is a 400 of its own."""
    answers = together(server, "texts", [b"the cat", b"Sat!", b"\xff", b"dog"])

    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    # Of "the", "cat" and "the cat"; of "sat"; of no word that is known.
    logits = torch.tensor([[4.0, 3.0], [0, 2], [0, 0]])
    for answer, scores in zip((answers[0], answers[1], answers[3]), logits.softmax(1).tolist(), strict=True):
        assert list(answer.json()) == ["zero", "one"]
        assert list(answer.json().values()) == pytest.approx(scores, abs=1e-5)


def test_texts_explained(server):
    """Each instance may name its class, by JSON and by a multipart field."""
    instances = [{"data": "the cat sat", "target": 1}, "sat"]
    explained = server.inference.post("/v1/models/texts:explain", json={"instances": instances}).json()
    form = {"data": (None, "the cat sat"), "target": (None, "1")}
    single = server.inference.post("/explanations/texts", files=form).json()

    assert explained["explanations"] == [single, {"words": ["sat"], "importances": [0.0]}]
    assert single["words"] == ["the", "cat", "sat"]
    assert single["importances"] == pytest.approx([1.5, 1.5, 2.0], abs=1e-5)


@pytest.mark.parametrize("name", ["segmenter", "detector"])
def test_what_cannot_be_explained(server, name):
    """It is a 501 that says so."""
    answer = server.inference.post(f"/explanations/{name}", content=picture(30, 30))

    assert answer.status_code == 501
    assert "explains nothing" in answer.json()["message"]


def test_numbers_for_base_handler(shared_server, model_store, tmp_path):
    """JSON numbers in each form that clients send become tensors, over /predictions and V1."""
    (tmp_path / "sum_model.py").write_text(
        "from torch import nn\nclass Sum(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(4, 1, bias=False)\n        nn.init.ones_(self.layer.weight)\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    archive = ArchiveConfig(
        "numbers", "base_handler", "1.0", model_file=tmp_path / "sum_model.py", export_path=model_store
    )
    build_archive(archive)
    shared_server.registered("numbers.mar", batch_size=4)
    row = [1, 2, 3, 4]

    def predict(**body):
        return shared_server.inference.post("/predictions/numbers", **body).json()

    assert predict(json=row) == [10.0]
    assert predict(json={"data": row}) == [10.0]
    assert predict(json={"instances": [row, row]}) == {"predictions": [[10.0], [10.0]]}
    assert predict(content=b"[1, 2, 3, 4]") == [10.0]
    assert predict(json=["one"])["code"] == 400
    answer = shared_server.inference.post(
        "/v1/models/numbers:predict", json={"instances": [row, {"data": row}, {"x": row}]}
    )
    assert answer.json()["predictions"] == [[10.0]] * 3


def test_named_inputs_for_base_handler(shared_server, model_store, tmp_path):
    """A JSON object of several inputs reaches the network as its arguments of these names, in any order and
    in each form that clients send; requests of one batch are joined input by input.
    """
    (tmp_path / "two_inputs_model.py").write_text(
        "from torch import nn\nclass Difference(nn.Module):\n"
        "    def forward(self, minuend, subtrahend):\n        return minuend - subtrahend\n"
    )
    archive = ArchiveConfig(
        "difference",
        "base_handler",
        "1.0",
        model_file=tmp_path / "two_inputs_model.py",
        export_path=model_store,
    )
    build_archive(archive)
    shared_server.registered("difference.mar", batch_size=4, max_batch_delay=200)
    inputs = {"minuend": [5, 7], "subtrahend": [1, 2]}
    turned = dict(reversed(inputs.items()))

    def predict(body):
        return shared_server.inference.post("/predictions/difference", json=body)

    for body, expected in (
        (inputs, [4, 5]), (turned, [4, 5]), ({"data": inputs}, [4, 5]),
        ({"instances": [inputs, turned]}, {"predictions": [[4, 5], [4, 5]]}),
    ):  # fmt: skip
        assert predict(body).json() == expected
    assert shared_server.v1("difference", [inputs]).json()["predictions"] == [[4, 5]]
    form = {name: (None, json.dumps(numbers)) for name, numbers in inputs.items()}
    assert shared_server.inference.post("/predictions/difference", files=form).json() == [4, 5]
    broken = {"minuend": [5, 7], "subtrahend": ["one", "two"]}
    bodies = [{**inputs, "minuend": [10, 10]}, broken, {"minuend": [5, 7]}, inputs]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(predict, bodies))
    assert [answer.status_code for answer in answers] == [200, 400, 503, 200]
    assert (answers[0].json(), answers[3].json()) == ([9, 8], [4, 5])
    assert "not a tensor of numbers" in answers[1].json()["message"]
    assert "missing 1 required positional argument: 'subtrahend'" in answers[2].json()["message"]


def test_random_weights_are_told(shared_server, model_store, tmp_path):
    """Of an archive without weights the register answer, describe and one line of the log say so."""
    (tmp_path / "random_model.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(2, 1)"
    )
    archive = ArchiveConfig(
        "weightless", "base_handler", "1.0", model_file=tmp_path / "random_model.py", export_path=model_store
    )
    build_archive(archive)
    answer = shared_server.management.post(
        "/models", params={"url": "weightless.mar", "initial_workers": 2}, timeout=120
    ).json()
    (described,) = shared_server.management.get("/models/weightless").json()

    (warning,) = answer["warnings"]
    assert warning.startswith("The archive has no weights (--serialized-file)")
    assert described["warnings"] == [warning]
    assert shared_server.home.log().count(warning) == 1


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


def test_a_densenet_with_weights_of_old_names(shared_server, model_store, tmp_path):
    """Its model file, which renames them while they are loaded, is served as in TorchServe's first example:
    every worker of ``image_classifier`` answers what the network computes without a server.
    """
    torch.manual_seed(0)
    network = DenseNet(8, (2, 2), 16, num_classes=7).eval()
    numbered = re.compile(r"(.*denselayer\d+\.(?:norm|conv))(\d\..*)")
    old = {numbered.sub(r"\1.\2", key): value for key, value in network.state_dict().items()}
    assert old.keys() != network.state_dict().keys()
    torch.save(old, tmp_path / "densenet-old.pth")
    (tmp_path / "densenet_model.py").write_text(DENSENET)
    build_archive(
        ArchiveConfig(
            "old_densenet",
            "image_classifier",
            "1.0",
            model_file=tmp_path / "densenet_model.py",
            serialized_file=tmp_path / "densenet-old.pth",
            export_path=model_store,
        )
    )
    shared_server.registered("old_densenet.mar", initial_workers=2)
    sizes = [(300, 260), (256, 400)] * 4
    answers = together(shared_server, "old_densenet", [picture(*size) for size in sizes])

    for answer, size in zip(answers, sizes, strict=True):
        pixels = ImageClassifier.image_processing(Image.open(io.BytesIO(picture(*size))))
        with torch.inference_mode():
            scores = network(pixels.unsqueeze(0)).softmax(dim=1)[0]
        best = scores.topk(5)
        assert list(answer.json()) == [str(index) for index in best.indices.tolist()]
        assert list(answer.json().values()) == pytest.approx(best.values.tolist(), rel=1e-4)
