"""Handlers written for TorchServe in real workers: their ``ts`` names, metrics and base class."""

import os

import pytest
import torch
from tests.e2e.serving import ROOT, archived


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    return tmp_path_factory.mktemp("ts_names")


@pytest.mark.slow  # a server from nothing
def test_names_are_offered_in_workers_only(model_store, tmp_path, start_server):
    """A worker finds our ``ts``, though another is installed; an archive's own module wins (issue: `ts`)."""
    installed = tmp_path / "site" / "ts"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("__version__ = 'installed'\n")
    own = tmp_path / "ts.py"
    own.write_text("__version__ = 'own'\n")
    source = "import ts\ndef handle(data, context):\n    return [ts.__version__] * len(data or ())\n"
    archived(model_store, "asks_ts", source)
    archived(model_store, "brings_ts", source, extra_files=str(own))
    path = os.pathsep.join([str(tmp_path / "site"), *(str(ROOT / name) for name in ("app", "handlers"))])
    second = start_server(environment={"PYTHONPATH": path}, model_store=model_store)
    second.registered("asks_ts.mar").registered("brings_ts.mar")

    assert (second.predict("asks_ts").text, second.predict("brings_ts").text) == ("0.12.0", "own")


MODEL = """
import torch

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return x * self.factor
"""
SCALING = """
from abc import ABC
import torch
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler

class Scaling(BaseHandler, ABC):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self, micro_batch_size=1)

    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data])
"""


@pytest.mark.slow  # imports torch
def test_an_archive_made_for_torchserve_is_served(shared_server, model_store, tmp_path):
    """BaseHandler under its old name loads the network in a worker and answers in micro-batches."""
    (tmp_path / "scale.py").write_text(MODEL)
    torch.save({"factor": torch.tensor(3.0)}, tmp_path / "scale.pth")
    files = {"model_file": str(tmp_path / "scale.py"), "serialized_file": str(tmp_path / "scale.pth")}
    archived(model_store, "scaling", SCALING, **files)
    shared_server.registered("scaling.mar", batch_size=4)

    answer = shared_server.inference.post("/v1/models/scaling:predict", json={"instances": [[1.0], [2.0]]})
    assert answer.json()["predictions"] == [[3.0], [6.0]]
    assert shared_server.inference.post("/predictions/scaling", json=[2.0]).json() == [6.0]
