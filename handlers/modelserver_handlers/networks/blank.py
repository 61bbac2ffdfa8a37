"""Networks created without the random numbers that a file of weights replaces anyway.

For 60 million weights those cost half a second and 240 MB.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LAYER = frozenset(vars(nn.Module()))


def make_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """What ``make`` makes, with its state still to be set.

    If it holds tensors that are not state, which might be random too, or has its own way of loading state,
    which may leave some out, it is made as usual.
    """
    with _without_initialisation():
        model = make()
    fills_all = all(map(_loads_by_torch, model.modules()))
    return model if fills_all and not _has_tensors_beside_state(model) else make()


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


def _has_tensors_beside_state(model: nn.Module) -> bool:
    return any(module._non_persistent_buffers_set or _holds_tensor(module) for module in model.modules())


def _holds_tensor(module: nn.Module) -> bool:
    own = [value for name, value in vars(module).items() if name not in _LAYER]
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(own))
