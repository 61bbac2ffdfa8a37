"""ImageClassifier: numbers equal to torchvision's reference."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.models import ResNet18_Weights, ResNet152_Weights
from torchvision.models.densenet import DenseNet

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.image_classifier import MEAN, STD, ImageClassifier

if TYPE_CHECKING:
    from pathlib import Path

Transform = Callable[[Image.Image], torch.Tensor]

WRONG: dict[str, Transform] = {
    "resize 232": transforms.Compose([transforms.Resize(232), transforms.CenterCrop(224)]),
    "resize without proportions": transforms.Compose(
        [transforms.Resize((256, 256)), transforms.CenterCrop(224)]
    ),
    "resize without antialias": transforms.Compose(
        [transforms.Resize(256, transforms.InterpolationMode.NEAREST), transforms.CenterCrop(224)]
    ),
    "bicubic": transforms.Compose(
        [transforms.Resize(256, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(224)]
    ),
    "crop one pixel aside": transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(226), lambda picture: picture.crop((0, 1, 224, 225))]
    ),
    "no crop": transforms.Compose([transforms.Resize((224, 224))]),
}
RIGHT_SIZE = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
WRONG_NUMBERS: dict[str, Transform] = {
    "no normalisation": transforms.ToTensor(),
    "mean and deviation of one half": transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
    ),
    "blue first": transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN[::-1], STD[::-1])]),
    "normalised before scaling": transforms.Compose(
        [transforms.PILToTensor(), lambda pixels: pixels.float(), transforms.Normalize(MEAN, STD)]
    ),
}


@pytest.fixture(scope="module")
def exact(resnet18: torch.nn.Module) -> torch.nn.Module:
    """The network in double precision: what rounding does to single precision differs with processor and
    threads, and must not count twice.
    """
    return copy.deepcopy(resnet18).double()


def reference(exact: torch.nn.Module, files: list[bytes], transform: Transform) -> list[dict[str, float]]:
    """Top five of the softmax, one picture at a time, by torchvision's transforms."""
    answers = []
    for file in files:
        picture = Image.open(io.BytesIO(file)).convert("RGB")
        with torch.inference_mode():
            scores = exact(transform(picture).unsqueeze(0).double()).softmax(dim=1)[0]
        best = scores.topk(5)
        numbers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        answers.append({f"label {number}": value for number, value in numbers})
    return answers


def equal(left: list[Any], right: list[Any]) -> bool:
    """Same labels in the same order, probabilities within 1e-5 of each other."""
    return all(
        list(one) == list(other) and list(one.values()) == pytest.approx(list(other.values()), rel=1e-5)
        for one, other in zip(left, right, strict=True)
    )


@pytest.fixture(scope="module")
def loaded(resnet18_folder: Path, make_context: Any) -> ImageClassifier:
    """A classifier with the calibrated ResNet-18."""
    made = ImageClassifier()
    made.initialize(make_context(resnet18_folder, modelFile="model.py", serializedFile="weights.pth"))
    return made


@pytest.fixture
def handler(loaded: ImageClassifier, begin: Any) -> ImageClassifier:
    """It, at the beginning of a batch."""
    begin(loaded.context, 5)
    return loaded


@pytest.fixture(scope="module")
def answers(loaded: ImageClassifier, begin: Any, pictures: list[bytes]) -> list[Any]:
    """What the classifier says of the pictures, as one batch."""
    begin(loaded.context, 5)
    answered: list[Any] = loaded.handle([{"body": file} for file in pictures], loaded.context)
    return answered


def test_numbers_are_torchvisions(answers: list[Any], pictures: list[bytes], exact: torch.nn.Module) -> None:
    """A batch gets labels, order and probabilities of torchvision's reference transforms, to 1e-5."""
    expected = reference(exact, pictures, ResNet18_Weights.IMAGENET1K_V1.transforms())

    assert equal(answers, expected)
    assert all(len(answer) == 5 for answer in answers)
    assert all(list(answer.values()) == sorted(answer.values(), reverse=True) for answer in answers)


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_sizes_would_be_noticed(
    mistake: str, answers: list[Any], pictures: list[bytes], exact: torch.nn.Module
) -> None:
    """A wrong resize or crop does not pass the comparison of two pictures."""
    wrong = transforms.Compose([WRONG[mistake], transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    assert not equal(answers[:2], reference(exact, pictures[:2], wrong))


@pytest.mark.parametrize("mistake", WRONG_NUMBERS)
def test_wrong_normalisation_would_be_noticed(
    mistake: str, answers: list[Any], pictures: list[bytes], exact: torch.nn.Module
) -> None:
    """A wrong normalisation does not pass the comparison of two pictures."""
    wrong = transforms.Compose([RIGHT_SIZE, WRONG_NUMBERS[mistake]])

    assert not equal(answers[:2], reference(exact, pictures[:2], wrong))


def test_pictures_differ(answers: list[Any]) -> None:
    """Different pictures get different answers."""
    assert len({next(iter(answer)) for answer in answers}) >= 3


@pytest.mark.parametrize("size", [1, 2, 5])
def test_company_does_not_matter(
    size: int, answers: list[Any], handler: ImageClassifier, pictures: list[bytes]
) -> None:
    """A picture's answer does not depend on the size of its batch."""
    alone = handler.handle([{"body": file} for file in pictures[:size]], handler.context)

    assert equal(alone, answers[:size])


@pytest.mark.parametrize("position", range(5))
def test_bad_neighbour(
    position: int, answers: list[Any], handler: ImageClassifier, pictures: list[bytes]
) -> None:
    """A bad picture at any position leaves the others' numbers as they are (F17, F18)."""
    rows = [{"body": file} for file in pictures]
    rows[position] = {"body": pictures[position][:50]}
    answered = handler.handle(rows, handler.context)

    assert answered.pop(position) is None
    assert equal(answered, [answer for idx, answer in enumerate(answers) if idx != position])


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_torchscript(
    tmp_path: Path,
    resnet18: torch.nn.Module,
    answers: list[Any],
    pictures: list[bytes],
    make_context: Any,
    begin: Any,
) -> None:
    """The same network as a TorchScript archive gives the same numbers; without labels, by class number."""
    torch.jit.trace(resnet18, torch.zeros(2, 3, 224, 224)).save(tmp_path / "net.pt")
    handler = ImageClassifier()
    handler.initialize(make_context(tmp_path, serializedFile="net.pt"))
    begin(handler.context, 5)
    answered = handler.handle([{"body": file} for file in pictures], handler.context)

    assert equal([{f"label {key}": value for key, value in answer.items()} for answer in answered], answers)


def test_number_of_classes(handler: ImageClassifier, pictures: list[bytes]) -> None:
    """set_max_result_classes decides how many classes are answered."""
    handler.set_max_result_classes(2)

    assert handler.get_max_result_classes() == 2
    assert [len(answer) for answer in handler.handle([{"body": pictures[0]}], handler.context)] == [2]
    handler.set_max_result_classes(5)


def test_few_classes() -> None:
    """A model with fewer classes than asked for answers all it has."""
    assert [len(answer) for answer in ImageClassifier().postprocess(torch.zeros(2, 3))] == [3, 3]


def test_sizes_from_the_configuration(resnet18_folder: Path, make_context: Any) -> None:
    """``handler: {resize, crop}`` changes the transforms, and pictures still become RGB."""
    config = {"handler": {"resize": 64, "crop": 48}}
    handler = ImageClassifier()
    handler.initialize(
        make_context(resnet18_folder, config, modelFile="model.py", serializedFile="weights.pth")
    )
    buffer = io.BytesIO()
    Image.new("L", (100, 80)).save(buffer, "PNG")

    assert handler.preprocess([{"body": buffer.getvalue()}]).shape == (1, 3, 48, 48)


@pytest.mark.parametrize("size", [0, -1, "224", True, 1.5])
def test_malformed_sizes(size: Any, resnet18_folder: Path, make_context: Any) -> None:
    """A size that is no number of pixels stops the load."""
    context = make_context(
        resnet18_folder, {"handler": {"crop": size}}, modelFile="model.py", serializedFile="weights.pth"
    )

    with pytest.raises(ModelLoadError, match="handler: crop must be a number of pixels"):
        ImageClassifier().initialize(context)


def torchvision_config(**settings: Any) -> dict[str, Any]:
    """A model-config.yaml that names a network."""
    return {"handler": {"torchvision": {"arch": "resnet18", **settings}}}


def test_network_by_name(
    tmp_path: Path, make_context: Any, exact: torch.nn.Module, pictures: list[bytes], begin: Any
) -> None:
    """A configuration alone names the network; its labels are torchvision's."""
    handler = ImageClassifier()
    handler.initialize(make_context(tmp_path, torchvision_config(weights="random", seed=0)))
    begin(handler.context, 5)
    answered = handler.handle([{"body": file} for file in pictures], handler.context)
    names = ResNet18_Weights.DEFAULT.meta["categories"]
    expected = reference(exact, pictures, ResNet18_Weights.IMAGENET1K_V1.transforms())

    renamed = [{names[int(key.split()[1])]: value for key, value in answer.items()} for answer in expected]
    assert equal(answered, renamed)


def test_labels_of_the_archive_win(tmp_path: Path, make_context: Any) -> None:
    """An archive's own labels replace torchvision's."""
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "own"}))
    handler = ImageClassifier()
    handler.initialize(make_context(tmp_path, torchvision_config(weights="random")))

    assert handler.mapping == {"0": "own"}


@pytest.mark.parametrize(
    ("weights", "resize"), [(ResNet152_Weights.IMAGENET1K_V1, 256), (ResNet152_Weights.IMAGENET1K_V2, 232)]
)
def test_transforms_of_the_weights(
    weights: Any,
    resize: int,
    tmp_path: Path,
    make_context: Any,
    monkeypatch: pytest.MonkeyPatch,
    resnet18: torch.nn.Module,
    pictures: list[bytes],
) -> None:
    """Trained weights are given pictures as they were trained on, to the last bit."""
    monkeypatch.setattr("torchvision.models.get_model", lambda _arch, weights: resnet18)
    handler = ImageClassifier()
    config = {"handler": {"torchvision": {"arch": "resnet152", "weights": weights.name}}}
    handler.initialize(make_context(tmp_path, config))
    picture = Image.open(io.BytesIO(pictures[0])).convert("RGB")

    assert weights.transforms().resize_size == [resize]
    assert torch.equal(handler.preprocess([{"body": pictures[0]}])[0], weights.transforms()(picture))


def test_built_in_handlers_are_pipelined() -> None:
    """The classifier promises that it can prepare a batch while another runs."""
    assert vars(ImageClassifier)["pipelined"] is True


OLD_DENSENET = r"""
import re

from torchvision.models.densenet import DenseNet

NUMBERED = re.compile(r"(.*denselayer\d+\.(?:norm|conv))\.(\d\..*)")


class OldDenseNet(DenseNet):
    def __init__(self):
        super().__init__(8, (2, 2), 16)

    def load_state_dict(self, state_dict, strict=True):
        for key in [key for key in state_dict if NUMBERED.match(key)]:
            state_dict[NUMBERED.sub(r"\1\2", key)] = state_dict.pop(key)
        return super().load_state_dict(state_dict, strict)
"""


def test_networks_that_rename_old_weights(
    make_context: Any, begin: Any, tmp_path: Path, picture: Any
) -> None:
    """A model file that overrides load_state_dict to take weights of torchvision's first years is served."""
    torch.manual_seed(0)
    network = DenseNet(8, (2, 2), 16).eval()
    old = re.compile(r"(.*denselayer\d+\.(?:norm|conv))(\d\..*)")
    torch.save(
        {old.sub(r"\1.\2", key): value for key, value in network.state_dict().items()}, tmp_path / "old.pth"
    )
    (tmp_path / "model.py").write_text(OLD_DENSENET)
    handler = ImageClassifier()
    handler.initialize(make_context(tmp_path, modelFile="model.py", serializedFile="old.pth"))
    begin(handler.context)
    buffer = io.BytesIO()
    picture(1).save(buffer, "PNG")

    (answer,) = handler.handle([{"data": buffer.getvalue()}], handler.context)

    with torch.inference_mode():
        scores = network(handler.image_processing(picture(1)).unsqueeze(0)).softmax(dim=1)[0]
    assert answer == {
        str(number): pytest.approx(scores[number].item(), rel=1e-4)
        for number in scores.topk(5).indices.tolist()
    }
