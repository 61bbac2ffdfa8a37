"""The networks of the comparison with plain torch, torchvision and Pillow, and the ways to compute them.

Nothing but these and the standard library is imported: peers load it in their own environments.
"""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from PIL import Image
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torchvision import models, transforms

from benchmarks.peers.mlp import Mlp


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute a network; with none of the four it is eager, as torchvision builds it."""

    channels_last: bool = False
    folded: bool = False  # convolution and batch normalisation made one
    bf16: bool = False
    compiled: bool = False  # by TorchInductor, with frozen weights


FORMS = {
    "plain": Form(),
    "channels_last": Form(channels_last=True),
    "folded": Form(folded=True),
    "folded, channels_last": Form(folded=True, channels_last=True),
    "compiled": Form(channels_last=True, compiled=True),
    "bf16": Form(folded=True, channels_last=True, bf16=True),
    "bf16, compiled": Form(channels_last=True, bf16=True, compiled=True),
}


class Network:
    """A ResNet of torchvision with the weights of an archive."""

    def __init__(self, archive: Path, arch: str) -> None:
        self.model = models.get_model(arch, weights=None)
        with zipfile.ZipFile(archive) as parts:
            state = io.BytesIO(parts.read(f"{arch}.pth"))
        self.model.load_state_dict(torch.load(state, weights_only=True))
        self.model.eval()
        self._transform = transforms.Compose(
            [
                transforms.Resize(256),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def parse(self, picture: bytes) -> torch.Tensor:
        """An encoded picture to a tensor of 3 x 224 x 224."""
        return cast("torch.Tensor", self._transform(Image.open(io.BytesIO(picture)).convert("RGB")))

    def decode(self, pictures: Sequence[bytes]) -> torch.Tensor:
        """Encoded pictures to one tensor, one after another."""
        return torch.stack([self.parse(picture) for picture in pictures])

    def answers(self, tensors: Sequence[torch.Tensor]) -> list[dict[str, float]]:
        """The five likeliest classes of each parsed picture."""
        return best_five(self.model, torch.stack(list(tensors)))

    def classify(self, pictures: Sequence[bytes]) -> list[dict[str, float]]:
        """All that a request asks for: the five likeliest classes of each picture."""
        return best_five(self.model, self.decode(pictures))

    def work(self, kind: str, pictures: Sequence[bytes]) -> Callable[[], object]:
        """One batch, to be repeated: ``decode``, or in one of the FORMS.

        The forms decode their batch in as many threads as torch has. Raises KeyError for other kinds.
        """
        if kind == "decode":
            return partial(self.classify, pictures)
        form = FORMS[kind]
        model = formed(self.model, form, self.decode(pictures))
        pool = ThreadPoolExecutor(torch.get_num_threads())

        def classify() -> object:
            batch = torch.stack(list(pool.map(self.parse, pictures)))
            return best_five(model, laid_out(batch, form))

        return classify


class Rows:
    """The small network over JSON, in the shape of the loop: bodies in, bodies out."""

    def work(self, _kind: str, bodies: Sequence[bytes]) -> Callable[[], object]:
        """One batch: JSON read, computed, JSON written."""
        mlp = Mlp.loaded()
        return lambda: [json.dumps(answer) for answer in mlp.answers(list(map(mlp.parse, bodies)))]


def best_five(model: nn.Module, batch: torch.Tensor) -> list[dict[str, float]]:
    """The five likeliest classes of each row and their probabilities."""
    # Inductor freezes weights under no_grad only.
    with torch.no_grad():
        scores = torch.softmax(model(batch).float(), dim=1)
        best, classes = torch.topk(scores, 5, dim=1)
    return [
        {str(name): score for name, score in zip(*row)}  # noqa: B905 - same lengths
        for row in zip(classes.tolist(), best.tolist())  # noqa: B905
    ]


def formed(model: nn.Module, form: Form, example: torch.Tensor) -> nn.Module:
    """A copy of a network in a form, called once so that what compiles is compiled."""
    made = folded(model) if form.folded else copy.deepcopy(model)
    made = made.bfloat16() if form.bf16 else made
    if form.channels_last:
        made = made.to(memory_format=torch.channels_last)
    if form.compiled:
        import torch._inductor.config as inductor  # noqa: PLC0415 - slow to import

        inductor.freezing = True
        made = cast("nn.Module", torch.compile(made))
    with torch.no_grad():
        made(laid_out(example, form))
    return made


def laid_out(batch: torch.Tensor, form: Form) -> torch.Tensor:
    """The input as a form wants it."""
    typed = batch.bfloat16() if form.bf16 else batch
    return typed.contiguous(memory_format=torch.channels_last) if form.channels_last else typed


def folded(model: nn.Module) -> nn.Module:
    """A traced copy in which each batch normalisation is part of the convolution before it."""
    # Tracing alone would share the modules.
    traced = fx.symbolic_trace(copy.deepcopy(model))
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.BatchNorm2d):
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.users) > 1:
            continue
        convolution = modules[before.target]
        if isinstance(convolution, nn.Conv2d):
            traced.set_submodule(before.target, fuse_conv_bn_eval(convolution, modules[node.target]))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.recompile()
    return traced
