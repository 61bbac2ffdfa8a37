"""From a loaded network to one that is ready: converted, optimised or compiled, and warmed up."""

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
    """The expected input: full batches of ``size`` rows, each of ``shape`` (None: unknown)."""

    size: int
    shape: tuple[int, ...] | None


def make_ready(
    model: Any, options: ModelOptions, document: Mapping[str, Any], batches: Batches, device: torch.device
) -> Any:
    """The network to use instead of ``model``, usually itself.

    A failed compilation is a warning, and the network runs uncompiled. Raises ModelLoadError for invalid
    settings.
    """
    return _Preparation(model, options, document, batches, device).ready()


@dataclass(frozen=True, slots=True)
class _Preparation:
    model: Any
    options: ModelOptions
    document: Mapping[str, Any]
    batches: Batches
    device: torch.device

    def ready(self) -> Any:
        model, batches = self.model, self.batches
        arguments = compile_arguments(self.document)
        ahead = None if arguments is None else self._compiled_ahead(arguments)
        if arguments is not None and ahead is None:
            compiled = self._compiled()
            if compiled is not None:
                return compiled
        optimised = (
            self.options.optimize
            and self.device.type == "cpu"
            and batches.shape is not None
            and optimize(model, batches.shape, self.options.precision, batches.size)
        )
        if not optimised and self.options.precision == "bf16":
            model = use_bf16(model)
        if ahead is not None:
            # The optimised network is as fast with a single row, and made for it.
            install(model, replace(ahead, lone=ahead.lone and (not optimised or batches.size == 1)))
        self._runs(model)
        return model

    def _source(self) -> Any:
        """The network to compile."""
        return use_bf16(copy.deepcopy(self.model)) if self.options.precision == "bf16" else self.model

    def _compiled_ahead(self, arguments: Mapping[str, Any]) -> Compiled | None:
        """Code that is kept; None if the network or the settings do not allow it."""
        batches = self.batches
        if self.device.type != "cpu" or batches.shape is None:
            return None
        return compile_ahead(self._source(), arguments, batches.shape, batches.size, self.options.precision)

    def _compiled(self) -> Any:
        """The compiled network, None with a warning if that fails."""
        if self.device.type == "cpu" and not finds_compiler():
            logger.warning("The model runs uncompiled: pt2 asks for code that needs a C++ compiler (g++)")
            return None
        source = self._source()
        compiled = compile_model(source, self.document)
        if compiled is source:
            return None
        if not self._runs(compiled, compiles=True):
            logger.warning("The model runs uncompiled: its compiled form failed")
            return None
        return compiled

    def _runs(self, model: Any, *, compiles: bool = False) -> bool:
        """Warms up, if wanted and possible; False if the network fails."""
        if not self.options.warmup or self.batches.shape is None:
            return True

        def run(rows: torch.Tensor) -> None:
            placed = rows.to(self.device)
            if compiles and len(rows) > 1:
                # Compiled once for all sizes; single rows get their own code.
                torch._dynamo.maybe_mark_dynamic(placed, 0)
            with torch.inference_mode():
                model(placed)

        return warm_up(run, self.batches.shape, self.batches.size)
