"""Networks of torch over the Open Inference Protocol."""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import numpy
import pytest
from PIL import Image

from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.serving import Server

pytestmark = pytest.mark.slow

SUM = """
import torch

class Sum(torch.nn.Module):
    def forward(self, a, b):
        return {"sum": a + b, "product": a.bfloat16() * b.bfloat16()}
"""
CLASSES = """
import torch

class Tiny(torch.nn.Module):
    def forward(self, pictures):
        return torch.stack((pictures.mean((1, 2, 3)), -pictures.mean((1, 2, 3))), dim=1)
"""


@pytest.fixture(scope="module")
def server(shared_server: Server, model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """``sum`` has two inputs and two outputs, ``classes`` is the built-in classifier."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "index_to_name.json").write_text(json.dumps({"0": "bright", "1": "dark"}))
    (folder / "model-config.yaml").write_text("handler: {resize: 8, crop: 8, topk: 2}\n")
    for name, source, handler in (("sum", SUM, "base_handler"), ("classes", CLASSES, "image_classifier")):
        (folder / f"{name}_model.py").write_text(source)
        build_archive(
            ArchiveConfig(
                name,
                handler,
                "1.0",
                model_file=folder / f"{name}_model.py",
                extra_files=str(folder / "index_to_name.json"),
                config_file=folder / "model-config.yaml",
                export_path=model_store,
            )
        )
        shared_server.registered(f"{name}.mar", batch_size=4, batch_policy="greedy")
    return shared_server


def an_input(name: str, datatype: str, values: Any) -> dict[str, Any]:
    """One input in JSON."""
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(numpy.shape(values)),
        "data": numpy.ravel(values).tolist(),
    }


def infer(server: Server, model: str, *inputs: dict[str, Any]) -> Any:
    """The answer to a request."""
    return server.inference.post(f"/v2/models/{model}/infer", json={"inputs": list(inputs)})


def test_a_network_of_numbers(server: Server) -> None:
    """No handler of one's own: inputs are the arguments of forward, tensors keep their datatypes."""
    a, b = numpy.arange(6.0).reshape(3, 2), numpy.ones((3, 2))
    outputs = infer(server, "sum", an_input("a", "FP32", a), an_input("b", "FP32", b)).json()["outputs"]

    assert outputs == [
        {"name": "sum", "shape": [3, 2], "datatype": "FP32", "data": (a + b).ravel().tolist()},
        {"name": "product", "shape": [3, 2], "datatype": "BF16", "data": (a * b).ravel().tolist()},
    ]


def picture(shade: int) -> bytes:
    """A picture of one colour."""
    content = io.BytesIO()
    Image.new("RGB", (9, 9), (shade,) * 3).save(content, "PNG")
    return content.getvalue()


def test_pictures(server: Server) -> None:
    """The classifier answers BYTES as it answers predictions and V1; a bad picture is its sender's 400."""
    texts = [base64.b64encode(picture(shade)).decode() for shade in (0, 255)]
    sent = {"name": "image", "datatype": "BYTES", "shape": [2], "data": texts}
    by_v2 = [json.loads(each) for each in infer(server, "classes", sent).json()["outputs"][0]["data"]]
    by_v1 = server.v1("classes", [{"data": text} for text in texts]).json()["predictions"]
    alone = [server.predict("classes", picture(shade)).json() for shade in (0, 255)]
    bad = infer(server, "classes", {**sent, "data": [texts[0], "bm9uZQ=="]})

    assert by_v2 == by_v1
    assert [list(each) for each in by_v2] == [list(each) for each in alone]
    assert bad.status_code == 400
    assert bad.json()["error"].startswith("row 1: ")


def test_prepared_pictures(server: Server) -> None:
    """The classifier takes tensors too, one a row."""
    light = numpy.ones((2, 3, 8, 8))
    answers = infer(server, "classes", an_input("image", "FP32", light)).json()["outputs"][0]["data"]

    assert [next(iter(json.loads(each))) for each in answers] == ["bright", "bright"]


def test_metadata_of_built_in_handlers(server: Server) -> None:
    """They take and give what has no shape."""
    document = server.inference.get("/v2/models/classes").json()

    assert document["inputs"] == [{"name": "input_0", "datatype": "BYTES", "shape": [-1]}]
    assert document["outputs"] == [{"name": "output_0", "datatype": "BYTES", "shape": [-1]}]
