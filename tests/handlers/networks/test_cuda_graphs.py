"""Graphs by batch size; recordings are played by functions."""

import pytest
import torch
from torch.torch_version import TorchVersion

from modelserver_handlers.errors import LoadAgain
from modelserver_handlers.networks import cuda_graphs


def played(size, replayed):
    """Doubles the sums of its inputs, and says that it was replayed."""
    inputs, answers = torch.full((size, 3), 9.0), torch.zeros(size, 1)

    def replay():
        replayed.append(size)
        answers.copy_(2 * inputs.sum(dim=1, keepdim=True))

    return cuda_graphs.GraphRecording(inputs, answers, replay)


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_sizes_are_powers_of_two(largest, sizes):
    assert cuda_graphs.batch_sizes(largest) == sizes


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_the_next_larger_size_is_replayed(rows, size):
    replayed = []
    graphs = cuda_graphs.BatchGraphs({each: played(each, replayed) for each in (4, 1, 2)})
    batch = torch.arange(rows * 3.0).view(rows, 3)
    assert graphs.fits(batch)
    answers = graphs(batch)
    graphs(torch.full((rows, 3), 7.0))

    assert torch.equal(answers, 2 * batch.sum(dim=1, keepdim=True))
    assert replayed == [size, size]
    assert graphs.sizes == (1, 2, 4)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(5, 3),
        torch.zeros(0, 3),
        torch.zeros(2, 4),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        [1, 2],
    ],
    ids=["too many", "none", "shape", "type", "device", "gradients", "no tensor"],
)
def test_other_batches_do_not_fit(batch):
    assert not cuda_graphs.BatchGraphs({4: played(4, [])}).fits(batch)


GPU = torch.device("cuda")
NONE = "CUDA graphs could not be recorded, the network runs without: "


def record(inference, messages=None):
    warn = ([] if messages is None else messages).append
    return cuda_graphs.record_graphs(inference, (3, 4), (1, 2, 2), GPU, torch.contiguous_format, warn)


def test_sizes_are_recorded_after_measuring(gpus):
    measured = []

    def inference(batch):
        measured.append((len(batch), gpus.capturing, torch.backends.cudnn.benchmark))
        return batch

    graphs = record(inference)

    assert graphs.sizes == (1, 2)
    assert measured[: cuda_graphs.WARMUPS + 1] == [(2, False, True)] * cuda_graphs.WARMUPS + [(2, True, True)]
    assert measured[cuda_graphs.WARMUPS + 1 :] == [(1, False, True)] * cuda_graphs.WARMUPS + [(1, True, True)]
    assert torch.backends.cudnn.benchmark is False
    graphs(torch.zeros(2, 3, 4))
    assert gpus.replayed == 1


def waiting(batch):
    """Cannot be recorded: it waits for the GPU."""
    return batch * batch.sum().item()


def falling(error):
    def inference(batch):
        if torch.cuda.is_current_stream_capturing():
            raise error
        return batch

    return inference


@pytest.mark.parametrize(
    ("inference", "reason"),
    [
        (waiting, "CUDA error: operation not permitted when stream is capturing"),
        (falling(AssertionError("no such pool")), "no such pool"),
        (falling(ValueError("no such mode")), "no such mode"),
        (lambda batch: {"out": batch}, "the network does not return one row per input"),
    ],
)
@pytest.mark.parametrize("keeps_stream", [True, False])
def test_networks_that_cannot_be_recorded_run_without(inference, reason, keeps_stream, gpus):
    gpus.keeps_stream = keeps_stream
    stream = torch.cuda.current_stream(GPU)
    messages = []

    assert record(inference, messages) is None
    assert messages == [NONE + reason]
    assert torch.cuda.current_stream(GPU) is stream


@pytest.mark.usefixtures("gpus")
def test_an_old_torch_loads_again_after_failures(monkeypatch):
    """Before torch 2.12 the model is loaded in a new process, which is told why it records nothing."""
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0+cu130"))
    with pytest.raises(LoadAgain, match="needs a new process") as caught:
        record(falling(RuntimeError("no")))
    for name, value in caught.value.variables.items():
        monkeypatch.setenv(name, value)
    messages = []

    assert record(falling(RuntimeError("no")), messages) is None
    assert messages == [f"{NONE}no"]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("version", "inference", "reason"),
    [
        ("2.11.0+cu130", lambda batch: [batch], "the network does not return one row per input"),
        ("2.1.2", lambda batch: batch, "torch 2.1.2 is older than 2.2"),
    ],
)
def test_any_torch_goes_on_where_nothing_was_recorded(version, inference, reason, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    warnings = []

    assert record(inference, warnings) is None
    assert warnings == [f"{NONE}{reason}"]


def test_a_gpu_that_fails_loads_again(gpus):
    def inference(batch):
        gpus.fail("CUDA error: an illegal memory access was encountered")
        gpus.launch()
        return batch

    with pytest.raises(LoadAgain, match="illegal memory access"):
        record(inference)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replaying_a_real_recording_matches_the_network():
    device = torch.device("cuda")
    network = torch.nn.Conv2d(3, 4, 3).to(device).eval()

    def inference(batch):
        with torch.inference_mode():
            return network(batch)

    graphs = cuda_graphs.record_graphs(inference, (3, 8, 8), cuda_graphs.batch_sizes(4), device)
    batch = torch.randn(3, 3, 8, 8, device=device)

    assert torch.allclose(graphs(batch), inference(batch), atol=1e-2)
