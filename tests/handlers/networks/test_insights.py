"""Attributions equal to Captum's, and the door to Captum."""

import sys

import pytest
import torch
from torch import nn

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.networks import insights
from modelserver_handlers.text_handler import TextHandler
from modelserver_handlers.vision import VisionHandler


class Bag(nn.Module):
    def __init__(self, mode="mean"):
        super().__init__()
        torch.manual_seed(1)
        self.bag = nn.EmbeddingBag(9, 4, mode=mode)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, ids, offsets):
        return self.head(self.bag(ids, offsets))


def test_pictures_have_captums_attributions():
    captum = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    pictures, targets = torch.randn(3, 3, 8, 8), [4, 0, 2]

    result = insights.integrated_gradients(model, pictures, targets)

    captums = captum.IntegratedGradients(model).attribute(pictures, target=targets, n_steps=insights.STEPS)
    assert torch.allclose(result, captums.float(), atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_words_have_captums_attributions(mode):
    captum = pytest.importorskip("captum.attr")
    model = Bag(mode)
    ids, offsets = torch.tensor([1, 5, 5, 7, 0, 2]), torch.tensor([0, 4])

    result = insights.bag_attributions(lambda: model(ids, offsets), model.bag, ids, offsets, [2, 0])

    for start, end, target in ((0, 4, 2), (4, 6, 0)):
        words = model.bag.weight[ids[start:end]].detach().unsqueeze(0)

        def of_words(embedded):
            together = embedded.mean(1) if mode == "mean" else embedded.sum(1)
            return model.head(together)

        captums = captum.IntegratedGradients(of_words).attribute(words, target=target, n_steps=insights.STEPS)
        assert torch.allclose(result[start:end], captums[0].sum(dim=1).float(), atol=1e-5)


def test_no_hook_stays():
    model = Bag()
    ids, offsets = torch.tensor([1]), torch.tensor([0])

    def fails():
        model(ids, offsets)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        insights.bag_attributions(fails, model.bag, ids, offsets, 0)
    assert not model.bag._forward_hooks


def test_the_embedding_is_recognized():
    model = Bag()

    assert insights.find_embedding(model) is model.bag
    model.embedding = nn.Embedding(2, 2)
    assert insights.find_embedding(model) is model.embedding
    assert insights.find_embedding(torch.jit.script(Bag())) is None
    assert insights.find_embedding(len) is None


def test_without_captum_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)

    with pytest.raises(PredictionException, match=r"pip install 'modelserver\[explain\]'") as refusal:
        insights.captum_attributions()
    assert refusal.value.error_code == 501


def test_handlers_of_ones_own_get_captums_objects():
    captum = pytest.importorskip("captum.attr")
    vision, text = VisionHandler(), TextHandler()
    vision.model, text.model = nn.Linear(2, 2), Bag()

    assert isinstance(vision.ig, captum.IntegratedGradients)
    assert isinstance(text.lig, captum.LayerIntegratedGradients)
    vision.ig = "own"
    assert vision.ig == "own"


def test_linear_model_is_exact():
    weight = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    rows = torch.tensor([[1.0, 1.0], [2.0, 5.0]])

    one = insights.integrated_gradients(lambda x: x @ weight.T, rows, 1)
    each = insights.integrated_gradients(lambda x: x @ weight.T, rows, [0, 1])

    assert torch.allclose(one, rows * weight[1])
    assert torch.allclose(each, rows * weight)


@pytest.mark.parametrize("target", [2, -3, [0, 2]])
def test_unknown_classes_are_refused(target):
    """They are refused before they are looked up, which on a GPU would end the process."""
    with pytest.raises(IndexError, match="the classes are 0 to 1"):
        insights.chosen_outputs(torch.zeros(2, 2), target)
