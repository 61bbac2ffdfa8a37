"""TorchServe's own tests of its handlers, from its package, and the names of its archiver."""

import ast
import importlib
import os
import subprocess
import sys
import zipfile
from unittest import mock

import pytest
import torch
from PIL import Image
from tests.e2e.serving import ROOT, run_to_end

from modelserver.model_archiver.names import offer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not os.environ.get("MODELSERVER_LONG_TESTS"),
        reason="fetches TorchServe, 40 MB: only with MODELSERVER_LONG_TESTS=1",
    ),
]

# The others need weights and pictures from the network.
TESTS = ("test_base_handler.py", "test_envelopes.py", "test_mnist_kf.py")
# For the example that one of them imports.
HANDLER = """
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier

class MNISTDigitClassifier(ImageClassifier):
    image_processing = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def postprocess(self, data):
        return data.argmax(1).tolist()
"""
NETWORK = """
import torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(784, 9))
"""


@pytest.fixture(scope="module")
def torchserves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchserve")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    required = ["torchserve==0.12.0", "torch-model-archiver==0.12.0"]
    done = subprocess.run([*pip, *required], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"TorchServe cannot be fetched: {done.stderr[-300:]}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_their_tests_of_handlers_pass(torchserves, tmp_path):
    """Byte for byte, with ``ts`` being ours; the digits' handler and its network are stand-ins."""
    tests, example = tmp_path / "ts/torch_handler/unit_tests", tmp_path / "examples/image_classifier/mnist"
    tests.parent.mkdir(parents=True)
    (torchserves / "ts/torch_handler/unit_tests").rename(tests)
    (example / "test_data").mkdir(parents=True)
    (example / "mnist_handler.py").write_text(HANDLER)
    (example / "mnist.py").write_text(NETWORK)
    weights = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 9)).state_dict()
    torch.save(weights, example / "mnist_cnn.pt")
    Image.linear_gradient("L").resize((28, 28)).save(example / "test_data/0.png")
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "app", ROOT / "handlers")))
    options = ["-q", "-p", "modelserver_handlers.compat.activate", f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "pytest", *options, *(tests / name for name in TESTS)]
    done = run_to_end(command, tmp_path, {**os.environ, "PYTHONPATH": path}, 120)

    assert done.returncode == 0, done.stdout
    assert "11 passed" in done.stdout


@pytest.fixture
def offered():
    with mock.patch.dict(sys.modules):
        offer("model_archiver")
        yield


# Leftovers that nothing there reads.
NOT_OFFERED = {"MODEL_SERVER_VERSION", "MODEL_ARCHIVE_VERSION", "version_path", "__to_dict__"}


@pytest.mark.usefixtures("offered")
def test_the_archivers_names_are_there(torchserves):
    """Functions, constants, classes with methods, and what modules import of the package's own."""
    missing = []
    for file in sorted((torchserves / "model_archiver").rglob("*.py")):
        name = ".".join(file.relative_to(torchserves).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        missing += [f"{name}.{each}" for each in _names(file) if not _has(module, each)]

    assert missing == []


def _names(file):
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef():
                yield node.name
            case ast.ClassDef():
                yield from (
                    f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)
                )
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom() if (node.module or "").startswith("model_archiver"):
                yield from (each.asname or each.name for each in node.names)


def _has(module, name):
    owner, _, last = name.rpartition(".")
    return last in NOT_OFFERED or hasattr(getattr(module, owner) if owner else module, last)
