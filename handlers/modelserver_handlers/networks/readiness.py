"""From a network that is loaded to one that is ready: converted, optimised or compiled, and warm."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from modelserver_handlers.networks.ahead import Compiled, compile_ahead, install
from modelserver_handlers.networks.compilation import compile_arguments, compile_model, finds_compiler
from modelserver_handlers.networks.optimize import optimize
from modelserver_handlers.networks.precision import use_bf16
from modelserver_handlers.networks.warmup import warm_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelserver_handlers.handler_options import ModelOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batches:
    """What the network will get: full batches of ``size`` rows, each of ``shape`` (None: not known)."""

    size: int
    shape: tuple[int, ...] | None


def make_ready(
    model: Any, options: ModelOptions, document: Mapping[str, Any], batches: Batches, device: torch.device
) -> Any:
    """The network to be used instead of ``model``, mostly itself.

    A compilation that fails is a warning, and the network runs as without it. Raises ModelLoadError for
    settings that it cannot have.
    """
    arguments = compile_arguments(document)
    ahead = None
    if arguments is not None:
        ahead = _compiled_ahead(model, arguments, options, batches, device)
        compiled = None if ahead else _compiled(model, options, document, batches, device)
        if compiled is not None:
            return compiled
    optimised = (
        options.optimize
        and device.type == "cpu"
        and batches.shape is not None
        and optimize(model, batches.shape, options.precision, batches.size)
    )
    if not optimised and options.precision == "bf16":
        model = use_bf16(model)
    if ahead is not None:
        # What is optimised is as quick with a single row, and made for it.
        install(model, replace(ahead, lone=ahead.lone and (not optimised or batches.size == 1)))
    _runs(model, options, batches, device)
    return model


def _compiled_ahead(
    model: Any,
    arguments: Mapping[str, Any],
    options: ModelOptions,
    batches: Batches,
    device: torch.device,
) -> Compiled | None:
    """Code that is kept; None where the network or the settings have none."""
    if device.type != "cpu" or batches.shape is None:
        return None
    source = use_bf16(copy.deepcopy(model)) if options.precision == "bf16" else model
    return compile_ahead(source, arguments, batches.shape, batches.size, options.precision)


def _compiled(
    model: Any, options: ModelOptions, document: Mapping[str, Any], batches: Batches, device: torch.device
) -> Any:
    """The network compiled, None with a warning where that does not work."""
    if device.type == "cpu" and not finds_compiler():
        logger.warning("The model runs uncompiled: pt2 asks for code that needs a C++ compiler (g++)")
        return None
    source = use_bf16(copy.deepcopy(model)) if options.precision == "bf16" else model
    compiled = compile_model(source, document)
    if compiled is source:
        return None
    if not _runs(compiled, options, batches, device, compiles=True):
        logger.warning("The model runs uncompiled: its compiled form failed")
        return None
    return compiled


def _runs(
    model: Any, options: ModelOptions, batches: Batches, device: torch.device, *, compiles: bool = False
) -> bool:
    """Whether the network is not known to fail: it is warmed up, where that is wanted and possible."""
    if not options.warmup or batches.shape is None:
        return True

    def run(rows: torch.Tensor) -> None:
        placed = rows.to(device)
        if compiles and len(rows) > 1:
            # Compiled once for all sizes; lone rows get code of their own.
            torch._dynamo.maybe_mark_dynamic(placed, 0)
        with torch.inference_mode():
            model(placed)

    return warm_up(run, batches.shape, batches.size)
