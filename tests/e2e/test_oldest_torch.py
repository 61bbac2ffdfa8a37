"""A server beside the oldest torch, which was there before modelserver was installed.

It takes 4 minutes on 2 cores (226 s measured), all but half a minute of them for downloading and installing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from PIL import Image
from tests.e2e.serving import ROOT, Home, Server, serving

from modelserver.tools.archiver import ArchiveConfig, build_archive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("MODELSERVER_LONG_TESTS"),
        reason="installs 5 GB of packages for minutes: only with MODELSERVER_LONG_TESTS=1",
    ),
]

OLDEST = ("torch==2.2.*", "torchvision==0.17.*", "numpy<2")
ECHO = str(ROOT / "tests" / "e2e" / "model_code" / "echo.py")
NETWORK = """
from torchvision.models import DenseNet

class Small(DenseNet):
    def __init__(self):
        super().__init__(8, (2, 2), 16, num_classes=7)
"""
# The contents of the archives and the expected results, made by the old torch without modelserver.
MAKE = """
import json, sys
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
from small_model import Small

torch.manual_seed(0)
network = Small().eval()
torch.save(network.state_dict(), folder / "small.pth")
class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x).relu()

def exported(network, name):
    made = torch.export.export(network, (torch.ones(1, 4),))
    torch.export.save(made, folder / name)
    return made

program = exported(Program(), "program.pt2")
# What this torch writes, but cannot read again.
exported(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), "unreadable.pt2")
prepare = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
with torch.no_grad():
    scores = network(prepare(Image.open(folder / "picture.png")).unsqueeze(0)).softmax(1)[0].topk(5)
    numbers = program.module()(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))[0]
labels = [str(index) for index in scores.indices.tolist()]
print(json.dumps([dict(zip(labels, scores.values.tolist())), numbers.tolist()]))
"""


def run(*command, seconds):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def versions(python):
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json", seconds=60))
    return {each["name"]: each["version"] for each in listed}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment that has the oldest torch, and modelserver as its users install it."""
    folder = tmp_path_factory.mktemp("oldest")
    run(sys.executable, "-m", "venv", folder / "venv", seconds=60)
    made = folder / "venv" / "bin" / "python"
    pip = [str(made), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    try:
        done = subprocess.run([*pip, *OLDEST], capture_output=True, text=True, check=False, timeout=480)
    except subprocess.TimeoutExpired:
        pytest.skip("torch 2.2 is not installed within eight minutes")
    if done.returncode:
        pytest.skip(f"torch 2.2 cannot be installed for this Python: {done.stderr[-300:]}")
    before = versions(made)
    run(*pip, ROOT, seconds=240)
    after = versions(made)
    assert {name: after[name] for name in before} == before
    assert after["torch"].startswith("2.2.")
    assert "modelserver" in after
    yield made
    # pytest would keep its 5 GB for the next three runs.
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder for what archives are made of, with a network and a picture."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "small_model.py").write_text(NETWORK)
    Image.linear_gradient("L").resize((300, 260)).convert("RGB").save(folder / "picture.png")
    return folder


@pytest.fixture(scope="module")
def expected(python, files):
    """What the picture and [1, 2, 3, 4] are answered."""
    return json.loads(run(python, "-c", MAKE, files, seconds=120).splitlines()[-1])


@pytest.fixture(scope="module")
def server(python, tmp_path_factory, files):
    """A server of that environment, with all archives in its store."""
    store = tmp_path_factory.mktemp("store")
    home = Home(tmp_path_factory.mktemp("home"))
    home.python = python
    # Only what is installed counts.
    del home.environment["PYTHONPATH"]
    with serving(Server(home, store, settings={"default_startup_timeout": 240})) as started:
        yield started


def pack(server, name, handler, **files):
    store = server.settings["model_store"]
    build_archive(ArchiveConfig(name, handler, "1.0", export_path=store, **files))
    return f"{name}.mar"


def test_installing_keeps_it_and_models_are_served(server, files, expected):
    """A handler without torch, ``image_classifier`` in two workers, a program that this torch exported."""
    scores, numbers = expected
    server.registered(pack(server, "echo", ECHO))
    assert server.predict("echo", b"x").content == b"x"
    picture = (files / "picture.png").read_bytes()
    network = {"model_file": files / "small_model.py", "serialized_file": files / "small.pth"}
    server.registered(pack(server, "small", "image_classifier", **network), initial_workers=2, batch_size=4)
    for _ in range(4):
        assert server.predict("small", picture).json() == pytest.approx(scores, rel=1e-4)
    server.registered(pack(server, "program", "base_handler", serialized_file=files / "program.pt2"))

    answer = server.inference.post("/predictions/program", json=[1, 2, 3, 4])
    assert answer.json() == pytest.approx(numbers, rel=1e-5)


@pytest.mark.usefixtures("expected")
def test_what_needs_a_newer_one_says_so(server, files):
    """Programs of a newer torch or that this one cannot read, compiled packages and libraries, UINT16."""
    newer, compiled = files / "newer.pt2", files / "compiled.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),)), newer)
    with zipfile.ZipFile(compiled, "w") as package:
        package.writestr("compiled/data/aotinductor/model/m.so", b"")
    (files / "library.so").write_bytes(b"")
    (files / "model-config.yaml").write_text("pt2: {export: {aot_compile: true}}\n")

    def refusal(file, **more):
        url = pack(server, file.stem, "base_handler", serialized_file=file, **more)
        answer = server.register(url)
        assert answer.status_code == 500
        return str(answer.json()["message"])

    for file in (newer, files / "unreadable.pt2"):
        message = refusal(file)
        assert f"{file.name} is not what torch.export.save" in message
        assert re.search(r"or needs a newer torch than 2\.2\.\S+, or the one that wrote it: ", message)
    for file, more in ((compiled, {}), (files / "library.so", {"config_file": files / "model-config.yaml"})):
        assert f"{file.name} is compiled and needs a newer torch than 2.2." in refusal(file, **more)
    server.registered(pack(server, "rows", "base_handler", serialized_file=files / "program.pt2"))
    tensor = {"name": "x", "shape": [1, 4], "datatype": "UINT16", "data": [1, 2, 3, 4]}
    answer = server.inference.post("/v2/models/rows/infer", json={"inputs": [tensor]})
    assert answer.status_code == 400
    assert re.fullmatch(r"tensors of UINT16 need torch 2\.3 or newer, not 2\.2\.\S+", answer.json()["error"])
