import io
import json
import operator
import sys
from functools import partial
from importlib import metadata
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from tests.simulated_gpu import cuda_error

from modelserver_handlers.contract import check_contract
from modelserver_handlers.hints import hint_for


def raised(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        call()
    return caught.value


def raising(error):
    def call():
        raise error

    return call


class BaseHandler:
    """The part of BaseHandler that hints use."""

    initialized = False
    context: Any = None
    model: Any = None


class Forgetful(BaseHandler):
    """A handler whose initialize does not call that of its parent."""

    def directory(self):
        """What initialize would have made possible."""
        return str(self.context.system_properties["model_dir"])

    def compute(self):
        return self.model(1)


class Demanding:
    """Takes other arguments than it is given."""

    def __init__(self, path):
        self.path = path

    def handle(self, data):
        pass


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: __import__("no_such_package.part"), "the package no_such_package is missing"),
        (lambda: {"data": 1}["body"], 'under "data" or "body"'),
        (lambda: check_contract([1], 2), "one answer for each request"),
        (lambda: check_contract({}, 1), "handle must return a list"),
        (lambda: check_contract({}, 1, "predict"), "predict must return a list"),
        (lambda: __import__("no_such_package"), f"`{sys.executable} -m pip install`"),
        (Forgetful().directory, "super().initialize(context)"),
        (Forgetful().compute, "super().initialize(context)"),
        (lambda: __import__("json").loads({"a": 1}), "decoded the JSON of the body already"),
        (lambda: bytearray(b"{}")["data"], "Content-Type: application/json"),
        (raising(cuda_error()), "CUDA_LAUNCH_BLOCKING=1"),
        (raising(cuda_error()), "an index out of range"),
        (raising(cuda_error("CUDA error: an illegal memory access")), "outside of its tensors"),
        (raising(cuda_error("CUDA error: no kernel image is available")), "another architecture"),
        (raising(torch.OutOfMemoryError("CUDA out of memory. 2 GiB")), "does not suffice: nvidia-smi"),
        (raising(UnpicklingError("Weights only load failed.")), "save torch.save(model.state_dict(), path)"),
        (raising(ModuleNotFoundError(name="torch")), f"`{sys.executable} -m pip install torch torchvision`"),
        # It must not bring another torch.
        (
            raising(ModuleNotFoundError(name="torchvision.models")),
            f"`{sys.executable} -m pip install torchvision torch=={metadata.version('torch')}`",
        ),
    ],
)
def test_usual_mistakes_have_a_hint(call, words):
    assert words in hint_for(raised(call), "")


def test_arguments_that_a_handler_does_not_take_are_named():
    ours = {"__name__": "modelserver_handlers.loader", "Demanding": Demanding}
    for call, words in (
        ("Demanding()", "what it needs is read in initialize(self, context)"),
        ("Demanding('x').handle([], None)", "as handle(self, data, context)"),
    ):
        assert words in hint_for(raised(partial(eval, call, ours)))
        assert hint_for(raised(partial(eval, call, {**ours, "__name__": "own"}))) == ""


@pytest.mark.parametrize(
    ("call", "content_type", "words"),
    [
        (
            lambda: operator.getitem("text", "x"),
            "text/plain; charset=utf-8",
            "the client sent `Content-Type: text/plain`",
        ),
        (lambda: "text".get("x"), "Text/CSV", "the client sent `Content-Type: text/csv`"),
        (lambda: io.BytesIO("text"), "text/plain", "files as application/octet-stream"),
        (lambda: io.BytesIO({}), "application/json", "decoded the JSON of the body already"),
        (lambda: json.loads(5), "application/json", "decoded the JSON of the body already"),
        (lambda: json.loads(None), "", 'under "data" or "body"'),
        (lambda: json.loads(None), "multipart/form-data; boundary=b", "the client sent a form"),
        (lambda: None.get("x"), "multipart/form-data", "the client sent a form"),
        (lambda: operator.getitem(None, "x"), "application/x-www-form-urlencoded", "the client sent a form"),
        (lambda: {}["body"], "application/x-www-form-urlencoded", "the client sent a form"),
    ],
)
def test_wrong_content_types_are_named(call, content_type, words):
    assert words in hint_for(raised(call), content_type)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.nn.Linear(4, 2)(torch.zeros(1, 3)),
        lambda: torch.nn.Conv2d(3, 1, 3)(torch.zeros(1, 1, 8, 8)),
        lambda: torch.nn.Conv2d(3, 1, 3)(torch.zeros(8)),
        lambda: torch.zeros(3) + torch.zeros(4),
        lambda: torch.zeros(6).view(4),
        lambda: torch.stack([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.cat([torch.zeros(1, 2), torch.zeros(1, 3)]),
    ],
    ids=["linear", "channels", "dimensions", "sum", "view", "stack", "cat"],
)
def test_inputs_of_a_wrong_shape_have_a_hint(call):
    assert "check what preprocess makes of one row" in hint_for(raised(call), "")


@pytest.mark.parametrize(
    "call",
    [
        lambda: {}["instances"],
        lambda: {"instances": 1}["body"],
        lambda: operator.getitem([1, 2], "instances"),
        lambda: (1).get("instances"),
        lambda: operator.getitem(1, "instances"),
    ],
)
def test_handlers_that_read_a_split_body_have_a_hint(call):
    assert "split_instances=false" in hint_for(raised(call), "", is_split=True)
    assert "split_instances" not in hint_for(raised(call), "")


@pytest.mark.parametrize(
    "call",
    [
        lambda: int("x"),
        lambda: {}["size"],
        lambda: None.shape,
        lambda: "a" + 1,
        lambda: "text".get("x"),
        lambda: None.get("x"),
        lambda: io.BytesIO({}),
    ],
)
def test_other_exceptions_have_no_hint(call):
    assert hint_for(raised(call), "") == ""
