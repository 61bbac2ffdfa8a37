import pytest

from modelserver.engine.tensors.tensor import Tensor, TensorSpec, check_data, elements
from modelserver.errors import BadRequest


def test_elements_are_counted():
    assert (elements(()), elements((2, 3))) == (1, 6)
    Tensor.check_form("x", "INT8", (2, 3))
    check_data("x", "INT8", 6, memoryview(bytes(6)))
    with pytest.raises(BadRequest, match="input 'x'"):
        check_data("x", "INT8", 6, memoryview(bytes(5)))


def test_a_declared_shape_may_leave_sizes_open():
    spec = TensorSpec("x", "FP32", (-1, 3))
    assert [spec.fits(shape) for shape in ((7, 3), (1, 4), (3,))] == [True, False, False]
