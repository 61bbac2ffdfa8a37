from pathlib import Path
from unittest.mock import Mock
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision import models

from modelserver_handlers import zoo
from modelserver_handlers.errors import ModelLoadError


def test_batches_are_seeded_and_normalised():
    batch = zoo.calibration_batch(3, pictures=4, side=32)

    assert torch.equal(batch, zoo.calibration_batch(3, pictures=4, side=32))
    assert not torch.equal(batch, zoo.calibration_batch(4, pictures=4, side=32))
    assert batch.shape == (4, 3, 32, 32)
    assert abs(batch.mean()) < 0.5
    assert 0.7 < batch.std() < 1.6


def test_answers_differ_from_picture_to_picture(small_resnet):
    with torch.inference_mode():
        scores = small_resnet(zoo.calibration_batch(11, pictures=8, side=128)).softmax(dim=1)

    assert not any(module.training for module in small_resnet.modules())
    assert len(set(scores.argmax(dim=1).tolist())) >= 4
    assert scores.max(dim=1).values.median() > 3 / 1000
    assert all(
        module.momentum == 0.1 for module in small_resnet.modules() if isinstance(module, nn.BatchNorm2d)
    )


def test_networks_without_batchnorm_are_scaled():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))
    headless = nn.Sequential(nn.Linear(128, 5), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    before = headless[0].weight.clone()
    zoo.calibrate(network, 0)
    zoo.calibrate(headless, 0)

    logits = network(zoo.calibration_batch(0))
    assert abs((logits - logits.mean(dim=0)).std().item() - 1) < 0.01
    assert torch.equal(headless[0].weight, before)


ARCH = "shufflenet_v2_x0_5"


@pytest.fixture(scope="module")
def network():
    return zoo.random_network(ARCH, 0)


def test_settings_name_the_network():
    assert zoo.NetworkSpec.parse({"arch": "resnet18"}) == zoo.NetworkSpec("resnet18", "DEFAULT", 0)
    assert zoo.NetworkSpec.parse({"arch": "resnet18", "weights": "random", "seed": 3}) == zoo.NetworkSpec(
        "resnet18", "random", 3
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "needs arch"),
        ({"weights": "random"}, "needs arch"),
        ({"arch": "resnet18", "size": 3}, "not size"),
        ({"arch": "resnet18", "seed": "x"}, "seed must be a whole number"),
    ],
)
def test_malformed_settings_are_refused(settings, message):
    with pytest.raises(ModelLoadError, match=message):
        zoo.NetworkSpec.parse(settings)


def test_random_weights_depend_on_the_seed(network):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again, other = zoo.random_network(ARCH, 0), zoo.random_network(ARCH, 1)

    assert torch.equal(torch.rand(1), expected)
    assert torch.allclose(again.state_dict()["fc.weight"], network.state_dict()["fc.weight"])
    assert not torch.allclose(other.state_dict()["fc.weight"], network.state_dict()["fc.weight"])


def test_random_network_has_labels(tmp_path):
    built = zoo.build_network(zoo.NetworkSpec(ARCH, "random"), tmp_path)

    assert len(built.labels) == 1000
    assert "tabby" in built.labels
    assert built.transforms is None


def test_weights_come_from_a_file(tmp_path, network):
    torch.save(network.state_dict(), tmp_path / "own.pth")
    beside = zoo.build_network(zoo.NetworkSpec(ARCH, "own.pth"), tmp_path).model
    absolute = zoo.build_network(zoo.NetworkSpec(ARCH, str(tmp_path / "own.pth")), Path("/nowhere")).model

    for model in (beside, absolute):
        assert torch.equal(model.state_dict()["fc.weight"], network.state_dict()["fc.weight"])
        assert not model.training


def test_weights_that_do_not_fit_and_unknown_names_are_refused(tmp_path, network):
    torch.save(network.state_dict(), tmp_path / "own.pth")

    with pytest.raises(ModelLoadError, match=r"own\.pth does not fit the model"):
        zoo.build_network(zoo.NetworkSpec("shufflenet_v2_x1_0", "own.pth"), tmp_path)
    with pytest.raises(ModelLoadError, match=r"Missing the gone\.pth file"):
        zoo.build_network(zoo.NetworkSpec(ARCH, "gone.pth"), tmp_path)

    with pytest.raises(ModelLoadError, match="no classifier resnet19"):
        zoo.build_network(zoo.NetworkSpec("resnet19"), tmp_path)
    with pytest.raises(
        ModelLoadError, match="resnet152 has no weights BEST; there are IMAGENET1K_V1, IMAGENET1K_V2"
    ):
        zoo.find_weights("resnet152", "BEST")


def test_a_failed_download_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "get_model", Mock(side_effect=URLError("no route")))

    with pytest.raises(ModelLoadError, match=r"https://.*no route.*name it in weights"):
        zoo.build_network(zoo.NetworkSpec(ARCH, "DEFAULT"), tmp_path)
