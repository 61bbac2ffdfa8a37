"""From a loaded network to one that is ready: converted, optimised or compiled, and warmed up."""

from __future__ import annotations

import copy
import gc
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from modelserver_handlers.errors import ModelLoadError, first_line
from modelserver_handlers.handler_options import NetworkOptions
from modelserver_handlers.networks.ahead import Compiled, CompiledForward, compile_ahead
from modelserver_handlers.networks.compilation import compile_arguments, compile_model, finds_compiler
from modelserver_handlers.networks.cuda_graphs import batch_sizes
from modelserver_handlers.networks.int8 import NotInt8Error, has, is_able, quantise
from modelserver_handlers.networks.optimize import optimize
from modelserver_handlers.networks.precision import has_tf32, is_eager, use_bf16

logger = logging.getLogger(__name__)


LONG = 2.0  # seconds
_PROCESSOR = torch.device("cpu")
# Errors of CUDA and its libraries, and of onnxruntime's memory; those for which memory is too small.
_CUDA_ERROR = re.compile(
    r"(CUDA|cuDNN|NCCL) (driver |runtime )?error|CUDA (failure|out of memory)|\[CUDA\]"
    r"|(CUDNN|CUBLAS)_STATUS|BFCArena"
)
_OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED|BFCArena")


def sizes(batch_size: int) -> list[int]:
    """The batch sizes to start with: a full batch, one row, and the powers of two between, descending."""
    return list(dict.fromkeys([batch_size, 1, *reversed(batch_sizes(batch_size))]))


def warm_up(
    run: Callable[[torch.Tensor], Any],
    shape: Sequence[int],
    batch_size: int,
    device: torch.device = _PROCESSOR,
    warn: Callable[[str], object] = logger.warning,
    *,
    long: float = LONG,
) -> bool:
    """Run seeded batches of rows of ``shape``, full ones first; False, and a log line, if one fails.

    Libraries initialise themselves for each size; sizes are skipped after ``long`` seconds. If full batches
    do not fit into the memory of ``device``, a GPU, ``warn`` gets a line with the largest size that does.

    Raises ModelLoadError if torch or the network has no code for the GPU, and RuntimeError for other errors
    of CUDA and if a single row does not fit.
    """
    started, done, largest, shortage = time.perf_counter(), 0, 0, ""
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(batch_size, *shape, generator=generator)
    for size in sizes(batch_size):
        if done >= 2 and time.perf_counter() - started > long:
            break
        failure = _failure(run, full[:size], device)
        if not failure:
            done, largest = done + 1, max(largest, size)
        elif device.type != "cuda" or not _CUDA_ERROR.search(failure):
            logger.warning("Warming up with rows of %s failed: %s", tuple(shape), failure)
            return False
        elif size == 1 or not _OUT_OF_MEMORY.search(failure):
            kind = ModelLoadError if "no kernel image" in failure else RuntimeError
            raise kind(f"Warming up with batches of {size} failed on the GPU: {failure}")
        else:
            shortage = failure
            # The memory of the failed batch.
            gc.collect()
            torch.cuda.empty_cache()
    if shortage:
        warn(f"Batches of {batch_size} do not fit into the GPU's memory, those of {largest} do: {shortage}")
    logger.info("Warmed up with %d batch sizes in %.1f s", done, time.perf_counter() - started)
    return True


def _failure(run: Callable[[torch.Tensor], Any], rows: torch.Tensor, device: torch.device) -> str:
    """Why the batch could not be computed to its end, or nothing.

    Only text, as the frames of an error keep the batch's memory.
    """
    try:
        run(rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # user code may raise anything
        logger.debug("Warming up with %d rows failed", len(rows), exc_info=True)
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


@dataclass(frozen=True, slots=True)
class Batches:
    """The expected input: full batches of ``size`` rows, each of ``shape`` (None: unknown).

    ``order`` is their memory format.
    """

    size: int
    shape: tuple[int, ...] | None
    order: torch.memory_format = torch.contiguous_format


@dataclass(frozen=True, slots=True)
class Calibration:
    """For ``precision: int8``: ``rows`` makes the network's inputs, or raises NotInt8Error; ``report`` gets
    the precision that is used, and why.
    """

    rows: Callable[[], torch.Tensor]
    report: Callable[[str, str], None]


def make_ready(  # noqa: PLR0917 - all that there is to know
    model: Any,
    options: NetworkOptions,
    document: Mapping[str, Any],
    batches: Batches,
    device: torch.device,
    calibration: Calibration | None = None,
    warn: Callable[[str], object] = logger.warning,
) -> Any:
    """The network to use instead of ``model``, usually itself.

    A failed compilation is a warning, and the network runs uncompiled. ``warn`` gets what those who register
    the model should know. Raises ModelLoadError for invalid settings, and what :func:`warm_up` raises.
    """
    if options.precision == "int8":
        used = _in_int8(model, batches, device, calibration)
        if used == "int8":
            options, document = replace(options, optimize=False, precision="fp32"), {}
        else:
            options = replace(options, precision=used)
    return _NetworkPreparation(model, options, document, batches, device, warn).ready()


def _in_int8(model: Any, batches: Batches, device: torch.device, calibration: Calibration | None) -> str:
    """Make the network compute in int8 if it may; returns the precision to use."""
    try:
        used, why = "int8", _quantised(model, batches, device, calibration)
    except NotInt8Error as reason:
        used, why = _next_best(model, device), str(reason)
        logger.warning("precision: int8 is not used, but %s: %s", used, why)
    if calibration is not None:
        calibration.report(used, why)
    return used


def _quantised(model: Any, batches: Batches, device: torch.device, calibration: Calibration | None) -> str:
    """Quantise the network and describe its accuracy. Raises NotInt8Error."""
    if device.type != "cpu":
        raise NotInt8Error("the network is on a GPU, and int8 is for processors")
    if not is_able():
        raise NotInt8Error("this processor has no instructions that are faster in 8 bits (AVX2 or later)")
    if calibration is None:
        raise NotInt8Error("the handler has no calibration set")
    rows = calibration.rows()
    if batches.shape is not None and tuple(rows.shape[1:]) != batches.shape:
        shapes = f"{list(rows.shape[1:])}, the network's are {list(batches.shape)}"
        raise NotInt8Error(f"a row of the calibration set is {shapes}")
    return quantise(model, rows, batches.size)


def _next_best(model: Any, device: torch.device) -> str:
    if device.type == "cuda" and has_tf32(device):
        # GPUs that have TF32 have bfloat16.
        return "bf16" if is_eager(model) else "tf32"
    has_bf16 = has("avx512_bf16") or has("amx_tile")
    return "bf16" if device.type == "cpu" and has_bf16 and is_eager(model) else "fp32"


@dataclass(frozen=True, slots=True)
class _NetworkPreparation:
    model: Any
    options: NetworkOptions
    document: Mapping[str, Any]
    batches: Batches
    device: torch.device
    warn: Callable[[str], object]

    def ready(self) -> Any:
        model, batches = self.model, self.batches
        arguments = compile_arguments(self.document)
        ahead = None if arguments is None else self._compiled_ahead(arguments)
        if arguments is not None and ahead is None:
            compiled = self._compiled(arguments)
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
            lone = ahead.lone and (not optimised or batches.size == 1)
            model.forward = CompiledForward(model, replace(ahead, lone=lone))
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

    def _compiled(self, arguments: Mapping[str, Any]) -> Any:
        """The compiled network, None with a warning if that fails."""
        uses_inductor = arguments.get("backend", "inductor") == "inductor"
        if uses_inductor and not finds_compiler(self.device):
            compiler = "C++ compiler (g++)" if self.device.type == "cpu" else "C compiler (gcc), for Triton"
            logger.warning("The model runs uncompiled: pt2 asks for code that needs a %s", compiler)
            return None
        source = self._source()
        compiled = compile_model(source, self.document)
        if compiled is source:
            return None
        try:
            runs = self._runs(compiled, compiles=True)
        except RuntimeError as error:
            # If the GPU is the reason, the uncompiled network fails, too.
            logger.warning("%s", error)
            runs = False
        if not runs:
            logger.warning("The model runs uncompiled: its compiled form failed")
            return None
        return compiled

    def _runs(self, model: Any, *, compiles: bool = False) -> bool:
        """Warms up, if wanted and possible; False if the network fails."""
        if not self.options.warmup or self.batches.shape is None:
            return True

        def run(rows: torch.Tensor) -> None:
            placed = rows.to(self.device)
            if self.batches.order is not torch.contiguous_format:
                placed = placed.contiguous(memory_format=self.batches.order)
            if compiles and len(rows) > 1:
                # Compiled once for all sizes; single rows get their own code.
                torch._dynamo.maybe_mark_dynamic(placed, 0)
            with torch.inference_mode():
                model(placed)

        # A size may need code of its own, which must not be compiled in a request.
        long = math.inf if compiles else LONG
        return warm_up(run, self.batches.shape, self.batches.size, self.device, self.warn, long=long)
