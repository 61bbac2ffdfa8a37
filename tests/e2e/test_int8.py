"""Archives with ``precision: int8`` and a calibration set, registered and asked over HTTP."""

import inspect

import numpy
import pytest
import torch
from tests.e2e.serving import Home, Server, serving
from tests.handlers.networks import digits
from tests.handlers.processor import needs_int8

from modelserver.tools.archiver import ArchiveConfig, build_archive

pytestmark = [pytest.mark.slow, needs_int8]  # trains a network, and imports torch

IMPORTS = "from __future__ import annotations\nimport torch\nfrom torch import nn\n"
PICTURES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained network's files, and a folder of extra files with a calibration set in it."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "network.py").write_text(IMPORTS + inspect.getsource(digits.Residual))
    torch.save(digits.trained(digits.Residual()).state_dict(), folder / "weights.pth")
    (folder / "extra" / "calibration").mkdir(parents=True)
    numpy.save(folder / "extra" / "calibration" / "digits.npy", digits.calibration_set().numpy())
    (folder / "model-config.yaml").write_text("handler: {precision: int8, calibration: calibration}\n")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    """With the archives ``digits``, and ``bare``, whose set is missing."""
    store = folder / "store"
    store.mkdir()
    for name, extra in (("digits", str(folder / "extra")), ("bare", None)):
        build_archive(
            ArchiveConfig(
                name,
                "base_handler",
                "1.0",
                model_file=str(folder / "network.py"),
                serialized_file=str(folder / "weights.pth"),
                config_file=str(folder / "model-config.yaml"),
                extra_files=extra,
                export_path=store,
            )
        )
    home = Home(folder / "home", {"MODELSERVER_CACHE": str(folder / "cache")})
    with serving(Server(home, store)) as started:
        yield started


def right_answers(server, name):
    """The share of digits that the model reads as what they show."""
    sample = digits.held_out().part(0, PICTURES)
    answers = server.v1(name, sample.pictures.tolist()).json()["predictions"]
    return float((torch.tensor(answers).argmax(1) == sample.labels).float().mean())


def test_workers_share_int8_weights(server, folder):
    """Two workers compute with one file of weights and recognise digits; the precision is described."""
    answer = server.register("digits.mar", synchronous="true", initial_workers=2, batch_size=8)
    described = server.describe("digits")
    files = list((folder / "cache" / "weights").glob("*.pt"))

    assert answer.status_code == 200
    assert "warnings" not in answer.json() or not answer.json()["warnings"]
    assert described["precision"]["asked"] == described["precision"]["used"] == "int8"
    assert "the first class agrees for" in described["precision"]["why"]
    assert len(described["workers"]) == 2
    assert right_answers(server, "digits") > 0.9
    assert len(files) == 1
    assert all(str(files[0]) in {each.path for each in worker.memory_maps()} for worker in server.workers())


def test_an_archive_without_its_set_is_served_in_another_precision(server):
    """It is served all the same, in another precision, with a warning that says why."""
    answer = server.register("bare.mar", synchronous="true", initial_workers=1)
    described = server.describe("bare")["precision"]
    reason = "the archive has no calibration set 'calibration', or it is empty"

    assert answer.status_code == 200
    assert answer.json()["warnings"] == [f"precision: int8 is not used, but {described['used']}: {reason}"]
    assert described["used"] in {"fp32", "bf16"}
    assert described == {"asked": "int8", "used": described["used"], "why": reason}
    assert right_answers(server, "bare") > 0.9
