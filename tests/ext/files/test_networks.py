import stat

import pytest
import yaml

from modelserver.errors import BadRequest
from modelserver.ext.files.networks import TorchvisionSource
from modelserver.models.archives.archive import open_archive


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("torchvision://resnet152", TorchvisionSource("resnet152", "DEFAULT", 0)),
        ("torchvision://vit_b_16/?weights=random&seed=7", TorchvisionSource("vit_b_16", "random", 7)),
        ("torchvision://resnet50?weights=IMAGENET1K_V2", TorchvisionSource("resnet50", "IMAGENET1K_V2")),
        (
            "torchvision://vit_h_14?weights=IMAGENET1K_SWAG_E2E_V1",
            TorchvisionSource("vit_h_14", "IMAGENET1K_SWAG_E2E_V1"),
        ),
        ("TORCHVISION://resnet18?weights=my%20own.pth", TorchvisionSource("resnet18", "my own.pth")),
    ],
)
def test_url_is_read(url, expected):
    """Architecture, weights and seed come from the URL, weights and seed with defaults."""
    assert TorchvisionSource.parse(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("torchvision://", "architecture"),
        ("torchvision://Res-Net", "architecture"),
        ("torchvision://resnet18/extra", "architecture"),
        ("torchvision://resnet18#x", "architecture"),
        ("torchvision://user@resnet18", "architecture"),
        ("torchvision://[resnet18", "the form is"),
        ("torchvision://resnet18?weights", "the form is"),
        ("torchvision://resnet18?weight=random", "allowed are weights and seed"),
        ("torchvision://resnet18?seed=1&seed=2", "given once"),
        ("torchvision://resnet18?seed=-1", "whole number"),
        ("torchvision://resnet18?seed=9223372036854775808", "whole number"),
        ("torchvision://resnet18?seed=", "whole number"),
        ("torchvision://resnet18?weights=best", "use DEFAULT, IMAGENET1K_V1"),
        ("torchvision://resnet18?weights=sub/w.pth", "use DEFAULT"),
        ("torchvision://resnet18?weights=.hidden.pth", "use DEFAULT"),
        ("torchvision://resnet18?weights=", "use DEFAULT"),
    ],
)
def test_malformed_url_says_what_is_allowed(url, reason):
    """F62: anything else is a 400 that names what is allowed."""
    with pytest.raises(BadRequest) as caught:
        TorchvisionSource.parse(url)
    assert reason in caught.value.message


def test_written_directory_is_a_model(tmp_path):
    folder = TorchvisionSource("resnet18", "w.pth", 3).write(tmp_path / "work", lambda name: tmp_path / name)

    archive = open_archive(folder, "torchvision://resnet18", tmp_path, temporary=True)

    assert (archive.manifest.model_name, archive.manifest.model_version) == ("resnet18", "1.0")
    assert archive.manifest.handler == "image_classifier"
    assert yaml.safe_load(archive.config_text or "") == {
        "handler": {"torchvision": {"arch": "resnet18", "weights": str(tmp_path / "w.pth"), "seed": 3}}
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
