"""Random weights that answer like a trained network."""

from __future__ import annotations

import torch
from torch import nn

from modelserver_handlers.networks.calibration import calibrate, calibration_batch


def test_batches_are_seeded_and_normalised() -> None:
    """The batch depends on its seed alone, and has the range of normalised photographs."""
    batch = calibration_batch(3, pictures=4, side=32)

    assert torch.equal(batch, calibration_batch(3, pictures=4, side=32))
    assert not torch.equal(batch, calibration_batch(4, pictures=4, side=32))
    assert batch.shape == (4, 3, 32, 32)
    assert abs(batch.mean()) < 0.5
    assert 0.7 < batch.std() < 1.6


def test_answers_differ_from_picture_to_picture(small_resnet: nn.Module) -> None:
    """Answers differ from picture to picture, and the network is in evaluation mode."""
    with torch.inference_mode():
        scores = small_resnet(calibration_batch(11, pictures=8, side=128)).softmax(dim=1)

    assert not any(module.training for module in small_resnet.modules())
    assert len(set(scores.argmax(dim=1).tolist())) >= 4
    assert scores.max(dim=1).values.median() > 3 / 1000
    assert all(
        module.momentum == 0.1 for module in small_resnet.modules() if isinstance(module, nn.BatchNorm2d)
    )


def test_networks_without_batchnorm_are_scaled() -> None:
    """A network without BatchNorm has only its last layer scaled; a head of another form is left alone."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))
    headless = nn.Sequential(nn.Linear(128, 5), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    before = headless[0].weight.clone()
    calibrate(network, 0)
    calibrate(headless, 0)

    logits = network(calibration_batch(0))
    assert abs((logits - logits.mean(dim=0)).std().item() - 1) < 0.01
    assert torch.equal(headless[0].weight, before)
