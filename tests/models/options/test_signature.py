import pytest

from modelserver.engine.tensors.tensor import Tensor, TensorSpec
from modelserver.errors import BadRequest, InvalidModel
from modelserver.models.options.signature import Signature
from modelserver.models.options.yaml_file import parse_model_config

X = TensorSpec("x", "FP32", (-1, 2))
Y = TensorSpec("y", "INT64", (-1,))


def refusal(text):
    with pytest.raises(InvalidModel) as caught:
        parse_model_config(f"signature: {text}")
    return caught.value.message


def test_signature_is_read():
    """Inputs and outputs in the order of the file; either may be left out."""
    config, warnings = parse_model_config(
        "signature:\n"
        "  inputs:\n"
        "    - {name: x, datatype: FP32, shape: [-1, 2]}\n"
        "    - {name: y, datatype: INT64, shape: [-1]}\n"
    )

    assert config.signature == Signature((X, Y), ())
    assert warnings == []
    assert parse_model_config("signature: {}")[0].signature == Signature()
    assert parse_model_config("batchSize: 1")[0].signature is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "a mapping of inputs and outputs is needed"),
        ("{input: []}", "input is unknown, a mapping of inputs and outputs is needed"),
        ("{inputs: {}}", "inputs: a list of at most 256 tensors is needed"),
        ("{inputs: [x]}", "inputs[0]: name, datatype, shape, and nothing else, is needed"),
        ("{inputs: [{name: x}]}", "inputs[0]: name, datatype, shape, and nothing else, is needed"),
        ("{outputs: [{name: 3, datatype: FP32, shape: [1]}]}", "outputs[0].name: a text is needed"),
        ("{inputs: [{name: x, datatype: float, shape: [1]}]}", "inputs[0].datatype is float, one of BOOL, "),
        ("{inputs: [{name: x, datatype: FP32, shape: []}]}", "inputs[0].shape is [], a list of whole"),
        ("{inputs: [{name: x, datatype: FP32, shape: [-2]}]}", "inputs[0].shape is [-2], a list"),
        ("{inputs: [{name: x, datatype: FP32, shape: [true]}]}", "inputs[0].shape is [True], a list"),
        (
            "{inputs: [{name: x, datatype: FP32, shape: [1]}, {name: x, datatype: FP32, shape: [1]}]}",
            "inputs: 'x' is given twice, unique names are needed",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(text, what):
    message = refusal(text)
    assert message.startswith("model-config.yaml: signature=")
    assert what in message


def tensor(name, datatype, *shape):
    return Tensor(name, datatype, shape, memoryview(b""))


def test_inputs_and_outputs_keep_to_it():
    """The message is KServe's."""
    Signature((X, Y)).check_inputs([tensor("y", "INT64", 3), tensor("x", "FP32", 3, 2)])
    Signature((X,)).check_inputs([tensor("x", "FP32", 0, 2)])
    Signature().check_inputs([tensor("z", "BYTES")])
    Signature(outputs=(X, Y)).check_outputs("m", ["y", "x"])
    Signature().check_outputs("m", ["z"])

    with pytest.raises(BadRequest, match="Unexpected inference output 'q' for model 'm', which has 'x', 'y'"):
        Signature(outputs=(X, Y)).check_outputs("m", ["x", "q"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tensor("x", "FP32", 1, 2)], "input 'y' is missing"),
        ([tensor("z", "FP32", 1, 2)], "input 'z' is unknown, the model has 'x', 'y'"),
        ([tensor("x", "FP64", 1, 2)], "input 'x': datatype is FP64, the model takes FP32"),
        ([tensor("x", "FP32", 1, 3)], "input 'x': shape is [1, 3], the model takes [-1, 2]"),
        ([tensor("x", "FP32", 1, 2, 1)], "input 'x': shape is [1, 2, 1], the model takes [-1, 2]"),
        ([tensor("x", "FP32")], "input 'x': shape is [], the model takes [-1, 2]"),
    ],
)
def test_requests_that_do_not(inputs, message):
    """Each is refused with the name of the input (F9)."""
    with pytest.raises(BadRequest) as caught:
        Signature((X, Y)).check_inputs(inputs)
    assert caught.value.message == message
