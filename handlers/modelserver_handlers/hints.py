"""Hints for common mistakes in handlers; empty if the cause is unknown."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from types import FrameType
from typing import Any

from modelserver_handlers import gpu_errors
from modelserver_handlers.contract import ContractBroken
from modelserver_handlers.errors import text_of

_PACKAGE = (
    "the package {name} is missing: install it with `{python} -m pip install`, or list it in a file for "
    "`modelserver-archive --requirements-file` and set install_py_dep_per_model=true"
)
# By the Python that runs the worker, which need not be the server's.
_NO_TORCH = "modelserver does not include torch: install it with `{python} -m pip install torch torchvision`"
_NO_TORCHVISION = (
    "modelserver does not include torchvision: install the one for this torch with "
    "`{python} -m pip install torchvision torch=={torch}`"
)
_SPLIT = (
    "the server has split the body, so the handler gets single instances; a handler that reads the whole "
    "body itself needs split_instances=false"
)
_INITIALIZE = "if the handler has its own initialize, it must call super().initialize(context)"
_CONTENT = (
    'a request has its content under "data" or "body", as the client sent it: '
    'row.get("data") or row.get("body")'
)
_NOT_DECODED = (
    "the content is bytes: clients send JSON with `Content-Type: application/json`, or the handler decodes it"
)
_DECODED = (
    "the server has decoded the JSON of the body already; decode_input_request=false gives handlers the bytes"
)
_TEXT = (
    "the content is text because the client sent `Content-Type: {content_type}`: JSON is sent as "
    "application/json, files as application/octet-stream"
)
_FORM = (
    "the client sent a form (`Content-Type: {content_type}`): the row has its fields by their names, so "
    '"data" or "body" only if a field is called that'
)
_COUNT = "{method} must return a list with one answer for each request of the batch"
OUTPUTS = "an answer is bytes, text, or what JSON can hold, with arrays and tensors as lists"
_SHAPE = (
    "the network takes inputs of another shape: check what preprocess makes of one row, and that it joins "
    "the rows of a batch in a first dimension"
)
_WHOLE_MODEL = (
    "since torch 2.6 torch.load takes only tensors: save torch.save(model.state_dict(), path) and load that, "
    "or, where the file is trusted, torch.load(path, weights_only=False) in the handler or "
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the server's environment"
)
_FIND_THE_KERNEL = (
    "CUDA_LAUNCH_BLOCKING=1 in the server's environment lets the traceback end at the kernel that failed"
)
# What CUDA says, and what mostly is its cause.
_ASSERTED = (
    "mostly an index out of range, such as a token's id beyond the embedding or a label beyond the classes: "
    f"on the processor the message says which; {_FIND_THE_KERNEL}"
)
_OTHER_ARCHITECTURE = (
    "torch, an extension or a compiled model was built for GPUs of another architecture: install or compile "
    "it for this one (torch.cuda.get_arch_list() and torch.cuda.get_device_capability() tell)"
)
_GPU = {
    "device-side assert": _ASSERTED,
    "illegal memory access": f"a kernel has read or written outside of its tensors; {_FIND_THE_KERNEL}",
    "no kernel image": _OTHER_ARCHITECTURE,
}
_GPU_MEMORY = (
    "the GPU's memory does not suffice{free}: nvidia-smi shows who uses it; smaller inputs, a smaller "
    "batch_size, `precision: bf16` or fewer workers on this GPU need less"
)

_ARGUMENTS = {
    "__init__": "the class is created without arguments: what it needs is read in initialize(self, context)",
    "initialize": "it is called as initialize(self, context)",
    "handle": "it is called as handle(data, context), that of a class as handle(self, data, context)",
    "predict": "it is called as predict(self, rows)",
}
_TAKES_OTHERS = re.compile(
    rf"\b({'|'.join(_ARGUMENTS)})\(\) (takes \d+ positional|takes from|missing \d+ required)"
)

_READS_ANOTHER_KIND = re.compile(
    r"indices must be integers|has no attribute '(get|keys|items)'|not subscriptable"
)
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
# As torch says it.
_WRONG_SHAPE = re.compile(
    r"shapes cannot be multiplied|input to conv|to have \d+ channels|must match the size of tensor"
    r"|is invalid for input of size|stack expects each tensor to be equal size|Sizes of tensors must match"
)
_READS_BYTES = re.compile(
    r"(JSON object must be str, bytes or bytearray|bytes-like object is required), not '?(\w+)"
)
_READS_A_MAPPING = re.compile(
    r"string indices must be integers"
    r"|'(str|NoneType)' object (has no attribute '(get|keys|items)'|is not subscriptable)"
)


def hint_for(error: BaseException, content_type: str | None = None, *, is_split: bool = False) -> str:
    """A hint; ``content_type`` is that of a request's body, None while the handler is loaded.

    ``is_split``: the server has split the body into the handler's rows.
    """
    text, sent_as = text_of(error), (content_type or "").partition(";")[0].strip().lower()
    if about_gpu := _about_the_gpu(error, text):
        return about_gpu
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing(error.name.partition(".")[0])
    if type(error).__name__ == "UnpicklingError" and "weights" in text.lower():
        return _WHOLE_MODEL
    if isinstance(error, ContractBroken):
        return _COUNT.format(method=error.method)
    if content_type is not None and isinstance(error, RuntimeError) and _WRONG_SHAPE.search(text):
        return _SHAPE
    if is_split and _reads_a_whole_body(error, text):
        return _SPLIT
    if _is_uninitialised(error, text):
        return _INITIALIZE
    if called := _called_here(error, text):
        return _ARGUMENTS[called]
    if isinstance(error, KeyError) and error.args[:1] in (("data",), ("body",)):
        return _no_content(sent_as)
    if isinstance(error, (TypeError, AttributeError)):
        return _reads_another_type(text, sent_as)
    return ""


def _about_the_gpu(error: BaseException, text: str) -> str:
    if gpu_errors.ran_out(error):
        free = "" if "GiB" in text else gpu_errors.free_memory()
        return _GPU_MEMORY.format(free=f" ({free})" if free else "")
    return next((hint for words, hint in _GPU.items() if words in text), "")


def _reads_another_type(text: str, sent_as: str) -> str:
    """About a handler that gets bytes, text, decoded JSON or nothing where it reads something else."""
    match = _READS_BYTES.search(text)
    mapping = _READS_A_MAPPING.search(text)
    kind = match[2] if match else (mapping[1] or "str") if mapping else ""
    if kind == "NoneType":
        return _no_content(sent_as) if match or sent_as in _FORMS else ""
    if kind == "str":
        return _TEXT.format(content_type=sent_as) if sent_as.startswith("text/") else ""
    if match:
        return _DECODED if "JSON" in text or sent_as == "application/json" else ""
    return _NOT_DECODED if "bytearray" in text else ""


def _no_content(sent_as: str) -> str:
    return _FORM.format(content_type=sent_as) if sent_as in _FORMS else _CONTENT


def _missing(name: str) -> str:
    if name == "torch":
        return _NO_TORCH.format(python=sys.executable)
    if name == "torchvision":
        from importlib import metadata  # noqa: PLC0415 - an eighth of what a worker would import

        with contextlib.suppress(metadata.PackageNotFoundError):
            return _NO_TORCHVISION.format(python=sys.executable, torch=metadata.version("torch"))
    return _PACKAGE.format(name=name, python=sys.executable)


def _called_here(error: BaseException, text: str) -> str:
    """The method that the server, not the handler, has called with arguments that it does not take."""
    match = _TAKES_OTHERS.search(text) if isinstance(error, TypeError) else None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if match is None or not frames:
        return ""
    caller = str(frames[-1].f_globals.get("__name__"))
    return match[1] if caller.partition(".")[0] in {"modelserver", "modelserver_handlers"} else ""


def _reads_a_whole_body(error: BaseException, text: str) -> bool:
    if isinstance(error, KeyError):
        return error.args[:1] in (("instances",), ("inputs",), ("data",), ("body",))
    return isinstance(error, (TypeError, AttributeError)) and bool(_READS_ANOTHER_KIND.search(text))


def _is_uninitialised(error: BaseException, text: str) -> bool:
    """Whether a subclass of BaseHandler uses what BaseHandler's initialize would have set."""
    if not isinstance(error, (TypeError, AttributeError)) or "'NoneType' object" not in text:
        return False
    return any(_has_been_left_out(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _has_been_left_out(frame: FrameType) -> bool:
    handler: Any = frame.f_locals.get("self")
    names = {cls.__name__ for cls in type(handler).__mro__}
    return "BaseHandler" in names and getattr(handler, "initialized", True) is False
