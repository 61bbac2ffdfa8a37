import copy

import pytest
import torch
from tests.handlers.networks.conftest import SHAPE, Block, outputs, refused, rows, settled
from tests.handlers.processor import needs_bf16
from torch import nn

from modelserver_handlers.networks.insights import integrated_gradients
from modelserver_handlers.networks.optimize import FastForward, deviation, optimize, probe_batch
from modelserver_handlers.zoo import calibration_batch


class Reused(Block):
    """A network whose second convolution runs twice."""

    def forward(self, rows):
        signal = self.second(torch.relu(self.second(self.norm(self.first(rows)))))
        return self.last(signal.mean((2, 3)))


class Branches(Block):
    """What a convolution gives is used before and after its activation; a norm is used twice."""

    def forward(self, rows):
        signal = self.first(rows)
        both = self.norm(torch.relu(signal)) * self.norm(signal)
        return self.last((self.second(both) + 1).mean((2, 3)))


class Broadcast(Block):
    def forward(self, rows):
        signal = self.norm(self.first(rows))
        return self.last((self.second(signal) + signal.mean((2, 3), keepdim=True)).mean((2, 3)))


class Viewing(Block):
    """Looks at a sum's second term, through a view, after the sum."""

    def forward(self, rows):
        first = self.first(rows)
        view = first.flatten(1)
        summed = torch.relu(self.third(first) + first)
        return self.last(summed.mean((2, 3))) + view.mean(1, keepdim=True)

    def __init__(self):
        super().__init__()
        self.third = nn.Conv2d(16, 16, 1)


class Chain(Viewing):
    """Sums of sums, each the second term of the next; the first is used once more at the end."""

    def forward(self, rows):
        signal = self.first(rows)
        saved = torch.relu(self.third(signal) + signal)
        signal = torch.relu(self.fourth(saved) + saved)
        return self.last((signal * saved).mean((2, 3)))

    def __init__(self):
        super().__init__()
        self.fourth = nn.Conv2d(16, 16, 1)


@pytest.fixture
def runs(monkeypatch):
    seen = []
    compute = FastForward.compute

    def counting(self, batch):
        seen.append(len(batch))
        return compute(self, batch)

    monkeypatch.setattr(FastForward, "compute", counting)
    return seen


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.Tanh(), torch.relu]
)
def test_optimised_networks_compute_the_same_numbers(activation):
    plain = settled(Block(activation))
    fast = copy.deepcopy(plain)

    assert optimize(fast, SHAPE)
    for size in (1, 2, 8, 11):
        assert deviation(outputs(fast, rows(size)), outputs(plain, rows(size))) < 1e-4


@pytest.mark.parametrize("network", [Reused, Branches, Broadcast, Viewing, Chain])
def test_unusual_networks_keep_their_numbers(network):
    plain = settled(network())
    fast = copy.deepcopy(plain)
    optimize(fast, SHAPE)

    assert deviation(outputs(fast, rows()), outputs(plain, rows())) < 1e-4


def test_a_resnet_keeps_its_numbers_with_joined_sums(small_resnet):
    fast = copy.deepcopy(small_resnet)

    assert optimize(fast, (3, 64, 64))
    for side in (64, 96):
        pictures = calibration_batch(5, 2, side)
        assert deviation(outputs(fast, pictures), outputs(small_resnet, pictures)) < 1e-4
    # Its sums are joined with the convolutions before them.
    code = fast.forward._graph.code
    assert "add" not in code
    assert "relu" not in code


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_other_networks_and_programs_are_left_alone(caplog):
    """One layer in training mode (dropout at inference, for one) or with a hook is enough; a shape that the
    network does not take, or that is no picture's, is no reason to fail.
    """
    training, hooked = settled(Block()), settled(Block())
    training.norm.train()
    hooked.last.register_forward_hook(lambda *_: None)

    assert "training mode" in refused(training, caplog)
    assert "hooks" in refused(hooked, caplog)
    assert "failed with" in refused(settled(Block()), caplog, (5, 32, 32))
    assert "not pictures" in refused(settled(Block()), caplog, (64,))

    block = settled(Block())
    script = torch.jit.trace(block, rows(2))
    program = torch.export.export(block, (rows(2),)).module()

    assert "not an eager network" in refused(script, caplog)
    assert "not an eager network" in refused(program, caplog)


def test_networks_without_meaningful_numbers_are_left_alone(caplog):
    model = settled(Block())
    nn.init.zeros_(model.last.weight)

    assert "hardly depend" in refused(model, caplog)

    model = settled(Block())
    model.first.weight.data.mul_(1e30)
    model.norm.weight.data.fill_(1e30)
    model.norm.running_var.fill_(1e38)
    model.norm.eps = 0.0
    model.norm.running_var[0] = 1e-30
    model.first.weight.data[0] = 0.0
    model.first.weight.data[0, 0, 0, 0] = 1e25

    assert "would differ" in refused(model, caplog) or "hardly depend" in caplog.messages[-1]


def test_later_hooks_are_called(runs):
    model = settled(Block())
    optimize(model, SHAPE)
    seen = []
    before = len(runs)
    outputs(model, rows())
    handle = model.norm.register_forward_hook(lambda *_: seen.append(1))
    outputs(model, rows())
    handle.remove()
    outputs(model, rows())

    assert seen == [1]
    assert runs[before:] == [5, 5]


def test_a_second_time_and_a_copy_change_nothing():
    model = settled(Block())
    optimize(model, SHAPE)
    forward = model.forward

    assert optimize(model, SHAPE)
    assert model.forward is forward

    changed = copy.deepcopy(model)
    changed.last = nn.Identity()

    assert outputs(changed, rows()).shape == (5, 16)
    assert outputs(model, rows()).shape == (5, 7)


def test_gradients_are_the_plain_networks(runs):
    plain = settled(Block())
    fast = copy.deepcopy(plain)
    optimize(fast, SHAPE)
    before = len(runs)

    assert torch.equal(integrated_gradients(fast, rows(), 2), integrated_gradients(plain, rows(), 2))
    assert len(runs) == before
    assert fast.state_dict().keys() == plain.state_dict().keys()


def test_other_calls_are_the_networks_own(runs):
    model = settled(Block()).double()
    single = settled(Block())
    optimize(single, SHAPE)
    before = len(runs)
    single(rows())
    with torch.inference_mode():
        single(rows=rows())
        single.double()(rows().double())

    assert len(runs) == before
    assert not optimize(model, SHAPE)


def test_outputs_are_as_contiguous_as_before():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()

    assert optimize(model, SHAPE)
    assert outputs(model, rows()).view(-1).shape == (5 * 4 * 30 * 30,)


@needs_bf16
def test_bfloat16_answers_in_float32():
    plain = settled(Block())
    fast = copy.deepcopy(plain)

    assert optimize(fast, SHAPE, "bf16")
    answers = outputs(fast, rows())
    assert answers.dtype == torch.float32
    assert 1e-5 < deviation(answers, outputs(plain, rows())) < 0.05
    assert all(tensor.dtype != torch.bfloat16 for tensor in fast.state_dict().values())


def test_deviation_is_relative():
    ones = torch.ones(2, 2)
    endless = float("inf")

    assert deviation({"a": ones * 1.5}, {"a": ones * 2}) == 0.25
    assert deviation([ones], [ones]) == 0
    assert deviation(ones, [ones, ones]) == endless
    assert deviation(ones, ones[0]) == endless
    assert deviation(ones, ones.double()) == endless
    assert deviation(ones / 0, ones / 0) == endless
    assert deviation(ones * 0, ones * 0) == endless


def test_the_probe_is_seeded():
    assert torch.equal(probe_batch(SHAPE), probe_batch(SHAPE))
