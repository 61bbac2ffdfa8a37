import subprocess
import sys

import numpy
import pytest
import torch

from modelserver.engine.tensors.datatypes import TensorError, unpack
from modelserver_handlers.arrays import encode, is_array


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.array(["a", b"b"], object), ("BYTES", (2,), [b"a", b"b"])),
        (numpy.array([[1, 2]], ">i4"), ("INT32", (1, 2), [1, 2])),
        (numpy.float16(2), ("FP16", (), [2])),
        (torch.tensor(3.0, requires_grad=True), ("FP32", (), [3])),
        (torch.arange(6).reshape(2, 3).T, ("INT64", (3, 2), [0, 3, 1, 4, 2, 5])),
        (torch.empty(0, 2), ("FP32", (0, 2), [])),
    ],
    ids=repr,
)
def test_tensors_and_arrays_become_bytes(value, expected):
    datatype, shape, content = encode(value)

    assert is_array(value)
    assert (datatype, shape, unpack(datatype, memoryview(content))) == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (torch.tensor([1j]), "tensors of torch.complex64"),
        (numpy.array([1j]), "arrays of complex128"),
        (numpy.array([object()], object), "text and bytes only"),
    ],
)
def test_what_the_protocol_does_not_have_is_refused(value, problem):
    with pytest.raises(TensorError, match=problem):
        encode(value)


IN_A_WORKER = """
import sys
from modelserver.engine.tensors.rows import Form, InputForm
from modelserver.engine.worker.rows import tensor_rows
from modelserver.engine.wire.messages import TENSORS, Row
from modelserver.engine.tensors import rows

form = Form((InputForm("x", "UINT64", ()),))
assert not {"numpy", "torch"} & set(sys.modules)
got = tensor_rows.decode_rows([Row("i", 8, TENSORS, extra=rows._encode(form))], memoryview(b"\\xff" * 8))
assert type(got[0]["data"]) is sys.modules["numpy"].uint64, got
assert "torch" not in sys.modules
"""


def test_numpy_is_imported_for_the_first_row():
    """A handler that has imported neither torch nor numpy gets arrays, so that datatypes survive."""
    subprocess.run([sys.executable, "-c", IN_A_WORKER], check=True)
