"""The inputs and outputs that a model file declares: those of exported programs and of ONNX graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from modelserver_handlers.networks.onnx_session import OnnxNetwork
from modelserver_handlers.typed.handler import HandlerSignature
from modelserver_handlers.typed.signature import Described, datatype_named

_ANY: Final = -1
_OF_PROGRAM: Final = "_ms_sides"
_ONNX: Final = {"float": "FP32", "float16": "FP16", "double": "FP64", "bfloat16": "BF16", "string": "BYTES"}
_Declared = tuple[str, Any, Iterable[Any]]  # name, datatype, sizes


def remember(network: Any, program: Any) -> Any:
    """The network of an exported program, with what the program declares."""
    named = {node.name: node.meta.get("val") for node in program.graph.nodes}
    sides = [
        _side([(name, _torch_type(named.get(name)), named[name].shape) for name in names], is_output=output)
        for names, output in (
            (program.graph_signature.user_inputs, False),
            (program.graph_signature.user_outputs, True),
        )
        if all(hasattr(named.get(name), "shape") for name in names)
    ]
    if len(sides) == 2:
        setattr(network, _OF_PROGRAM, HandlerSignature(*sides))
    return network


def sides_of(network: Any) -> HandlerSignature | None:
    """What the file of a network declares, None if it declares nothing."""
    if isinstance(network, OnnxNetwork):
        session = network.session
        inputs = [(each.name, _onnx_type(each.type), each.shape) for each in session.get_inputs()]
        outputs = [(each.name, _onnx_type(each.type), each.shape) for each in session.get_outputs()]
        return HandlerSignature(_side(inputs), _side(outputs, is_output=True))
    declared: HandlerSignature | None = getattr(network, _OF_PROGRAM, None)
    return declared


def _side(declared: Iterable[_Declared], *, is_output: bool = False) -> Described:
    """The first size is the rows; outputs have the names that answers give them."""
    tensors = []
    for place, (name, datatype, sizes) in enumerate(declared):
        rest = (size if isinstance(size, int) and size > 0 else _ANY for size in list(sizes)[1:])
        tensors.append((f"output_{place}" if is_output else name, datatype, (_ANY, *rest)))
    return Described(tuple(tensors))


def _torch_type(value: Any) -> str:
    return datatype_named(str(getattr(value, "dtype", "torch.float32")).removeprefix("torch."))


def _onnx_type(kind: str) -> str:
    name = kind.removeprefix("tensor(").removesuffix(")")
    return _ONNX.get(name, name.upper())
