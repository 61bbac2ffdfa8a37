"""Networks in training mode, built or loaded in calls, and computing with gradients; libraries are only
used where the handler has them.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from modelserver.tools.doctor.probing import SourceLine, Training
from modelserver.tools.doctor.worker.watch import place_of_caller, place_of_code

# Modules of torch with layers that compute something else while training.
_DEPEND: Final = ("torch.nn.modules.dropout", "torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm")
# Functions and classes, by module, that load a network in native code, without calls of Python.
_LOADING_FUNCTIONS: Final = (("torch._C", "import_ir_module"), ("torch._C", "import_ir_module_from_buffer"))
_LOADING_CLASSES: Final = (
    ("torch._C", "PyTorchFileReader"),
    ("torch._C._aoti", "AOTIModelPackageLoader"),
    ("onnxruntime", "InferenceSession"),
)
_DEEPEST: Final = 3
_MOST: Final = 20


class Gradients(contextlib.ExitStack):
    """Notes whether a graph for gradients is built while it is entered, where, and whether it is used."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.place: SourceLine | None = None
        self._folder = folder
        self._built = self._used = False

    @property
    def left_on(self) -> bool:
        """Whether the graph was for nothing."""
        return self._built and not self._used

    def __enter__(self) -> Gradients:
        torch = sys.modules.get("torch")
        if torch is not None:
            # The hooks are called for each tensor that is saved for the backward pass.
            hooks = torch.autograd.graph.saved_tensors_hooks
            self.enter_context(hooks(self._keep, self._use))
        return self

    def _keep(self, tensor: Any) -> Any:
        if not self._built:
            self._built = True
            self.place = place_of_caller(self._folder)
        return tensor

    def _use(self, tensor: Any) -> Any:
        self._used = True
        return tensor


class Building(contextlib.ExitStack):
    """Notes where a network gets its weights while it is entered: built, loaded into an empty one, or loaded
    by a library's own code.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.place: SourceLine | None = None
        self._folder = folder

    def __enter__(self) -> Building:
        torch = sys.modules.get("torch")
        if torch is not None:
            registered = torch.nn.modules.module.register_module_parameter_registration_hook
            self.callback(registered(self._note).remove)
        for module, name in _LOADING_FUNCTIONS:
            self._watch(sys.modules.get(module), name)
        for module, name in _LOADING_CLASSES:
            self._watch(getattr(sys.modules.get(module), name, None), "__init__")
        return self

    def _watch(self, owner: Any, name: str) -> None:
        if owner is None or not hasattr(owner, name):
            return
        load = getattr(owner, name)

        def loading(*args: Any, **keywords: Any) -> Any:
            # torch.load reads what Python has opened, which is seen elsewhere, or what a request holds.
            if not any(isinstance(each, io.BufferedIOBase) for each in args):
                self._note()
            return load(*args, **keywords)

        setattr(owner, name, loading)
        self.callback(setattr, owner, name, load)

    def _note(self, *_: object) -> None:
        if self.place is not None:
            return
        frame: FrameType | None = sys._getframe(1)
        # Skip constructors: the handler's line is reported, not that of the network's class.
        while frame is not None and self.place is None:
            if frame.f_code.co_name != "__init__":
                self.place = place_of_code(frame.f_code, self._folder, frame.f_lineno)
            frame = frame.f_back


def networks_in_training(instance: Any, folder: str) -> list[Training]:
    """The networks in training mode that the handler, or a module of the model, holds."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    module_class: type[Any] = torch.nn.Module
    seen: set[int] = set()
    networks: list[Training] = []
    for name, value in _roots(instance, folder):
        for path, network in _networks(name, value, module_class, seen, _DEEPEST):
            if network.training and (training := _training(path, network)) is not None:
                networks.append(training)
    return networks[:_MOST]


def _roots(instance: Any, folder: str) -> Iterator[tuple[str, Any]]:
    if instance is not None:
        yield from ((f"self.{name}", value) for name, value in _attributes(instance).items())
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None) or "").startswith(folder):
            yield from list(vars(module).items())


def _networks(
    name: str, value: Any, module_class: type[Any], seen: set[int], depth: int
) -> Iterator[tuple[str, Any]]:
    """Networks in a value, in containers and in objects' attributes, not those within other networks."""
    if id(value) in seen or isinstance(value, type):
        return
    if issubclass(type(value), module_class):
        seen.add(id(value))
        yield name, value
        return
    if not depth or isinstance(value, (str, bytes, int, float, type(None))):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        inside = {f"{name}[{key!r}]": each for key, each in list(value.items())[:_MOST]}
    elif isinstance(value, (list, tuple)):
        inside = {f"{name}[{index}]": each for index, each in enumerate(value[:_MOST])}
    else:
        inside = {f"{name}.{key}": each for key, each in _attributes(value).items()}
    for path, each in inside.items():
        yield from _networks(path, each, module_class, seen, depth - 1)


def _attributes(value: Any) -> dict[str, Any]:
    package = getattr(type(value), "__module__", "").partition(".")[0]
    # The context, and what libraries made, hold no networks of the model's own.
    if package in {"modelserver", "torch", "builtins"} or type(value).__name__ in {"Context", "module"}:
        return {}
    attributes = getattr(value, "__dict__", None)
    return dict(attributes) if isinstance(attributes, dict) else {}


def _training(name: str, network: Any) -> Training | None:
    """None for one without weights and without layers that depend on the mode, such as a transform."""
    layers = {
        type(each).__name__
        for each in network.modules()
        if type(each).__module__.startswith(_DEPEND) and each.training
    }
    if not layers and not any(True for _ in network.parameters()):
        return None
    return Training(name, type(network).__name__, sorted(layers))
