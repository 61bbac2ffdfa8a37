from types import SimpleNamespace

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.ext.triton.metadata import describe_model, describe_server
from modelserver.models.options.signature import Signature


def test_tensors_of_a_signature_are_described():
    signature = Signature((TensorSpec("x", "FP32", (-1, 2)),))
    pool = SimpleNamespace(splits=False)
    model = SimpleNamespace(name="m", version="1.0", signature=signature, pool=pool, envelope="")
    registry = SimpleNamespace(get=lambda *_: model, versions=lambda _: [model])
    about = {"name": "m", "versions": ["1.0"], "platform": "pytorch"}
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]

    assert describe_model(registry, "m", None) == {**about, "inputs": inputs, "outputs": []}
    pool.splits = True
    described = describe_model(registry, "m", None)
    assert described["outputs"] == [{"name": "output_0", "datatype": "BYTES", "shape": [-1]}]


def test_shared_memory_is_an_extension_where_it_is_allowed():
    without, with_it = (
        describe_server(SimpleNamespace(shared_memory_prefix=each))["extensions"] for each in (None, "/")
    )

    assert [*without, "system_shared_memory"] == with_it
