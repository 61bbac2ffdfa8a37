"""Networks from the files of an archive: one loader per format (reference 14.1).

A network that gets its weights from a file is created without the random numbers that the file replaces: for
60 million weights those cost half a second and 240 MB.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from modelserver_handlers.errors import ModelLoadError, first_line
from modelserver_handlers.networks.exported import network_of
from modelserver_handlers.networks.modules import import_file, list_classes_from_module, require_file

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

NO_WEIGHTS = "No model weights could be loaded"


def load_eager(model_dir: Path, model_file: str, weights: Path | None) -> Any:
    """The one class that ``model_file`` defines, made without arguments, with the state dict ``weights``.

    Raises ModelLoadError if there is not exactly one class or the state dict does not fit.
    """
    classes = list_classes_from_module(import_file(model_dir / model_file))
    if len(classes) != 1:
        raise ModelLoadError(f"Expected only one class as model definition. {classes}")
    if weights is None:
        return classes[0]()
    state = read_state(weights)
    model = make_blank(classes[0])
    put_state(model, state, weights.name)
    return model


def read_state(path: Path) -> Mapping[str, Any]:
    """The state dict in ``path``, as saved; its tensors are mapped from the file if the format allows it.

    Raises ModelLoadError that names the file, and what a safe load refused.
    """
    state = read_saved(path, _refusal)
    if not isinstance(state, Mapping):
        raise ModelLoadError(f"{path.name} holds a {type(state).__name__}, not a state dict")
    return state


def read_saved(path: Path, refusal: Callable[[str, str], str]) -> Any:
    """What ``torch.save`` wrote to ``path``, loaded without running code.

    Raises ModelLoadError with ``refusal`` of the file's name and torch's reason if that is not possible.
    """
    require_file(path)
    try:
        return torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ModelLoadError(refusal(path.name, str(error))) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"{path.name} is not a file that torch.save wrote: {first_line(error)}"
        ) from error


def _refusal(name: str, reason: str) -> str:
    refused = next(
        (line.strip() for line in reason.splitlines() if "GLOBAL" in line or "nsupported" in line), ""
    )
    return (
        f"{name} was not loaded, because it holds more than tensors and unpickling it could run code"
        f" ({refused or reason.splitlines()[0]}). Save the state dict instead:"
        " torch.save(model.state_dict(), path)"
    )


def put_state(model: torch.nn.Module, state: Mapping[str, Any], name: str) -> None:
    """Load ``state`` strictly; tensors of the model's own types are used in place, not copied.

    A model with its own ``load_state_dict`` is given ``state`` and nothing else, as in TorchServe.
    Raises ModelLoadError with torch's list of what is missing, unexpected or of another shape.
    """
    in_place = {} if loads_by_itself(model) else {"assign": _same_types(model, state)}
    try:
        model.load_state_dict(state, **in_place)
    except RuntimeError as error:
        raise ModelLoadError(f"{name} does not fit the model: {error}") from error


def _same_types(model: torch.nn.Module, state: Mapping[str, Any]) -> bool:
    own = model.state_dict()
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return all(
        key in own and isinstance(own[key], torch.Tensor) and own[key].dtype == value.dtype
        for key, value in tensors.items()
    )


def load_torchscript(path: Path, device: torch.device) -> Any:
    """The TorchScript program in ``path``. Raises ModelLoadError if it is not one."""
    require_file(path)
    try:
        with warnings.catch_warnings():
            # The deprecation concerns the archive's author, not the operator.
            warnings.filterwarnings("ignore", message=".*torch.jit.load")
            return torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ModelLoadError(
            f"{path.name} is not a TorchScript file ({first_line(error)});"
            " a state dict needs a model file beside it (--model-file)"
        ) from error


def device_of(path: Path, device: torch.device) -> torch.device:
    """Where a ``.pt2`` file is computed: on ``device``, but on the processor if it was compiled for that.

    Raises ModelLoadError if it was compiled for another kind of device, or has kernels for other GPUs.
    """
    require_file(path)
    kind, capability, has_kernels = _compiled_for(path)
    if kind == "cpu":
        return torch.device("cpu")
    if kind and kind != device.type:
        raise ModelLoadError(f"{path.name} was compiled for {kind}, and this worker computes on {device}")
    if has_kernels and capability.isdecimal():
        major, minor = torch.cuda.get_device_capability(device)
        made_for = capability[:-1], capability[-1]
        if int(made_for[0]) != major or int(made_for[1]) > minor:
            raise ModelLoadError(
                f"{path.name} was compiled for GPUs of compute capability {'.'.join(made_for)}, and this one"
                f" ({torch.cuda.get_device_name(device)}) has {major}.{minor}: compile it on such a GPU"
            )
    return device


def _compiled_for(path: Path) -> tuple[str, str, bool]:
    """What AOTInductor notes in its package: the kind of device ("" in other files), its compute capability
    (as "90"), and whether the package has kernels in the code of that one only.
    """
    try:
        with zipfile.ZipFile(path) as package:
            names = [name for name in package.namelist() if "/aotinductor/model/" in f"/{name}"]
            noted = next((name for name in names if name.endswith("_metadata.json")), None)
            notes = json.loads(package.read(noted)) if noted else {}
    except (zipfile.BadZipFile, ValueError):
        return "", "", False
    has_kernels = any(name.endswith(".cubin") for name in names)
    return notes.get("AOTI_DEVICE_KEY", ""), notes.get("AOTI_COMPUTE_CAPABILITY", ""), has_kernels


def load_exported(path: Path, device: torch.device) -> Any:
    """The program of a ``.pt2`` file: what torch.export.save wrote, or a package that AOTInductor compiled.

    Raises ModelLoadError if it is neither.
    """
    require_file(path)
    try:
        return _load_package(path, device) if _is_compiled(path) else _load_program(path, device)
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise ModelLoadError(
            f"{path.name} is not what torch.export.save or aoti_compile_and_package wrote, or needs a newer"
            f" torch than {torch.__version__}, or the one that wrote it: {first_line(error)}"
        ) from error


def _is_compiled(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as package:
            return any("/aotinductor/" in f"/{name}" for name in package.namelist())
    except zipfile.BadZipFile as error:
        raise ValueError("not a zip file") from error


class _OnDevice(TorchFunctionMode):
    """Within, what a program has on any GPU is placed on ``device``; ``used`` is whether it has something."""

    current: ClassVar[_OnDevice | None] = None

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.used = False

    def __enter__(self) -> Self:
        _OnDevice.current = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        _OnDevice.current = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch for each of its functions."""
        named = {name: self._placed(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._placed, args), **named)

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, torch.device) or value.type != "cuda":
            return value
        self.used = True
        return self.device


def _restore(storage: Any, location: str) -> Any:
    """Place tensors that are pickled in a program, such as its example inputs, on the device of the mode."""
    mode = _OnDevice.current
    if mode is None or not location.startswith("cuda") or location == str(mode.device):
        return None
    restore: Any = torch.serialization.default_restore_location
    return restore(storage, str(mode.device))


torch.serialization.register_package(15, lambda _storage: None, _restore)  # 10 is processors', 20 CUDA's


def _load_program(path: Path, device: torch.device) -> Any:
    with _OnDevice(device) as placing:
        program = torch.export.load(path)
    if device.type != "cpu" or placing.used:
        from torch.export.passes import move_to_device_pass  # noqa: PLC0415 - only where a device is used

        program = move_to_device_pass(program, device)
    return network_of(program)


def _load_package(path: Path, device: torch.device) -> Any:
    # Importing this takes seconds.
    aoti_load_package = _function("torch._inductor", "aoti_load_package", path)
    place: dict[str, Any] = {} if device.index is None else {"device_index": device.index}
    return aoti_load_package(str(path), **place)


def load_compiled_library(path: Path, device: str) -> Any:
    """A ``.so`` that AOTInductor compiled (``pt2: {export: {aot_compile: true}}``); on ``cpu``, ``cuda:N``"""
    require_file(path)
    # Importing this takes seconds.
    aot_load = _function("torch._export", "aot_load", path)
    try:
        return aot_load(str(path), device)
    except RuntimeError as error:
        raise ModelLoadError(f"{path.name} is not a library of this torch: {first_line(error)}") from error


def _function(module: str, name: str, path: Path) -> Any:
    """A function of torch. Raises ModelLoadError if torch is too old for it."""
    function = getattr(importlib.import_module(module), name, None)
    if function is None:
        raise ModelLoadError(f"{path.name} is compiled and needs a newer torch than {torch.__version__}")
    return function


_LAYER = frozenset(vars(nn.Module()))


def make_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """What ``make`` makes, with its state still to be set.

    If it holds tensors that are not state, which might be random too, or has its own way of loading state,
    which may leave some out, it is made as usual.
    """
    with _without_initialisation():
        model = make()
    layers = list(model.modules())
    is_filled = all(map(_loads_by_torch, layers)) and not any(map(_has_tensors_beside_state, layers))
    return model if is_filled else make()


def loads_by_itself(model: nn.Module) -> bool:
    """Whether ``model`` has a ``load_state_dict`` or ``state_dict`` that is not torch's."""
    return any(not _is_torchs(model, method) for method in ("load_state_dict", "state_dict"))


def _loads_by_torch(module: nn.Module) -> bool:
    hooked = module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks
    return not hooked and not loads_by_itself(module) and _is_torchs(module, "_load_from_state_dict")


def _is_torchs(module: nn.Module, method: str) -> bool:
    function = getattr(module, method)
    return str(getattr(function, "__module__", "")).startswith("torch.")


@contextlib.contextmanager
def _without_initialisation() -> Iterator[None]:
    """Within, the functions of torch.nn.init do nothing."""
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(nn.init, name, lambda tensor, *_, **__: tensor))
        yield


def _has_tensors_beside_state(module: nn.Module) -> bool:
    own = [value for name, value in vars(module).items() if name not in _LAYER]
    holds_tensor = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(own))
    return holds_tensor or bool(module._non_persistent_buffers_set)
