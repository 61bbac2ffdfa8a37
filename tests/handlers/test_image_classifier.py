"""ImageClassifier: numbers equal to torchvision's reference."""

import copy
import io
import json

import pytest
import torch
from PIL import Image
from torchvision.models import ResNet18_Weights, ResNet152_Weights, ShuffleNet_V2_X0_5_Weights

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.zoo import random_network


@pytest.fixture(scope="module")
def exact(small_network):
    """In double precision: what rounding does in single precision differs with processor and threads."""
    return copy.deepcopy(small_network).double()


def reference(exact, files, transform):
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


def equal(left, right):
    """Same labels in the same order, probabilities within 1e-5 of each other."""
    return all(
        list(one) == list(other) and list(one.values()) == pytest.approx(list(other.values()), rel=1e-5)
        for one, other in zip(left, right, strict=True)
    )


@pytest.fixture(scope="module")
def loaded(small_folder, make_context):
    made = ImageClassifier()
    made.initialize(make_context(small_folder, modelFile="small_network.py", serializedFile="weights.pth"))
    return made


@pytest.fixture
def handler(loaded, begin):
    begin(loaded.context, 5)
    return loaded


def test_numbers_are_torchvisions(handler, pictures, exact):
    answers = handler.handle([{"body": file} for file in pictures], handler.context)

    assert equal(answers, reference(exact, pictures, ResNet18_Weights.IMAGENET1K_V1.transforms()))
    assert all(list(answer.values()) == sorted(answer.values(), reverse=True) for answer in answers)
    assert vars(ImageClassifier)["pipelined"] is True


def test_the_number_of_classes_can_be_set(handler, pictures):
    handler.set_max_result_classes(2)

    assert handler.get_max_result_classes() == 2
    assert [len(answer) for answer in handler.handle([{"body": pictures[0]}], handler.context)] == [2]
    handler.set_max_result_classes(5)


@pytest.mark.parametrize("size", [0, -1, "224", True, 1.5])
def test_malformed_sizes_stop_the_load(size, small_folder, make_context):
    context = make_context(
        small_folder, {"handler": {"crop": size}}, modelFile="small_network.py", serializedFile="weights.pth"
    )

    with pytest.raises(ModelLoadError, match="handler: crop must be a number of pixels"):
        ImageClassifier().initialize(context)


def torchvision_config(**settings):
    torchvision = {"arch": "shufflenet_v2_x0_5", **settings}
    return {"handler": {"torchvision": torchvision}, "warmup": False, "optimize": "off"}


def test_configuration_alone_names_a_network(tmp_path, make_context, pictures, begin):
    rows = [{"body": file} for file in pictures[:2]]
    handler = ImageClassifier()
    handler.initialize(make_context(tmp_path, torchvision_config(weights="random", seed=0)))
    begin(handler.context, 2)
    answers = handler.handle(rows, handler.context)
    names = ShuffleNet_V2_X0_5_Weights.DEFAULT.meta["categories"]
    network, prepared = random_network("shufflenet_v2_x0_5", 0), handler.preprocess(rows)
    with torch.inference_mode():
        scores = network(prepared).softmax(dim=1)

    best = scores.topk(5)
    expected = [
        {names[number]: value for number, value in zip(numbers, values, strict=True)}
        for numbers, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    assert equal(answers, expected)
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "own"}))
    handler.initialize(make_context(tmp_path, torchvision_config(weights="random")))
    assert handler.mapping == {"0": "own"}


def test_transforms_are_those_of_the_weights(tmp_path, make_context, monkeypatch, small_network, pictures):
    weights = ResNet152_Weights.IMAGENET1K_V2
    monkeypatch.setattr("torchvision.models.get_model", lambda _arch, weights: small_network)
    handler = ImageClassifier()
    config = {"handler": {"torchvision": {"arch": "resnet152", "weights": weights.name}}}
    handler.initialize(make_context(tmp_path, config))
    picture = Image.open(io.BytesIO(pictures[0])).convert("RGB")

    assert weights.transforms().resize_size == [232]
    assert torch.equal(handler.preprocess([{"body": pictures[0]}])[0], weights.transforms()(picture))
