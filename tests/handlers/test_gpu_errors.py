import sys
from unittest.mock import Mock

import pytest
import torch
from tests.simulated_gpu import GIB, cuda_error

from modelserver_handlers.gpu_errors import free_memory, is_broken_by, ran_out, release

OF_A_GPU = [
    cuda_error(),
    RuntimeError("CUDA driver error: unspecified launch failure"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle )`"),
    RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]
OF_ITS_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.fixture
def gpus(gpus):
    gpus.launch()
    return gpus


def because_of(cause):
    """An error of a handler that wraps another one."""
    error = ValueError("no prediction")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", OF_A_GPU, ids=str)
def test_a_gpu_is_tried_after_its_errors(gpus, error):
    """It is broken if a tiny kernel fails as well, whoever wraps the error; otherwise only that call was."""
    before = is_broken_by(error), is_broken_by(because_of(error))
    gpus.fail()

    assert before == (False, False)
    assert (is_broken_by(error), is_broken_by(because_of(error))) == (True, True)


@pytest.mark.parametrize("error", [*OF_ITS_MEMORY, ValueError("no number"), MemoryError()], ids=repr)
def test_a_gpu_is_not_tried_after_other_errors(gpus, error):
    gpus.fail()

    assert not is_broken_by(error)
    assert "synchronize" not in gpus.calls


def test_a_full_gpu_is_not_broken(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", Mock(side_effect=OF_ITS_MEMORY[0]))
    assert not is_broken_by(cuda_error())


def test_each_gpu_in_use_is_tried(gpus, monkeypatch):
    """Those that hold tensors, not only the current one, and no others: that would take memory there."""
    tried = []
    gpus.count = 3
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: GIB if number else 0)
    monkeypatch.setattr(torch.cuda, "synchronize", tried.append)

    assert not is_broken_by(cuda_error())
    assert tried == [1, 2]


@pytest.mark.parametrize("error", OF_ITS_MEMORY, ids=repr)
def test_exhausted_memory_is_recognised(error):
    assert ran_out(error)
    assert ran_out(because_of(error))
    assert not any(ran_out(other) for other in [*OF_A_GPU, MemoryError(), ValueError("CUDA")])


def test_causes_in_a_circle_end():
    error = ValueError("a")
    error.__context__ = because_of(error)

    assert not ran_out(error)


def test_memory_of_a_failed_call_is_released(gpus):
    def compute():
        activations = gpus.hold(GIB)
        gpus.allocate(gpus.memory)
        del activations

    def handle():
        pixels = gpus.hold(GIB)
        try:
            compute()
        except RuntimeError as error:
            raise ValueError("no prediction") from error
        del pixels

    with pytest.raises(ValueError, match="no prediction") as caught:
        handle()
    held = gpus.allocated
    release(caught.value)

    assert (held, gpus.allocated) == (2 * GIB, 0)
    assert gpus.calls.count("empty_cache") == 1

    release(ValueError("no number"))
    assert gpus.calls.count("empty_cache") == 1


def test_free_memory_is_of_a_gpu_in_use(gpus, monkeypatch):
    gpus.allocate(GIB)
    message = [free_memory()]
    gpus.contexts.clear()
    message.append(free_memory())
    monkeypatch.delitem(sys.modules, "torch")
    message.append(free_memory())

    assert message == ["79.00 of 80.00 GiB are free", "", ""]
    assert not is_broken_by(OF_A_GPU[1])
    assert "torch" not in sys.modules
