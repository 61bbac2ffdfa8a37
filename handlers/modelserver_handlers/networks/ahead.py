"""``torch.compile``'s code, made ahead of time: cached, and mapped by every worker, also after restarts.

Inductor's code for an exported network needs no compiler the next time: it is loaded in tenths of a
second. It only suits batches of the form that it was made for. Everything else, such as gradients, is left to
the network's original ``forward``.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_unflatten, treespec_loads

from modelserver_handlers.errors import first_line
from modelserver_handlers.networks import cache
from modelserver_handlers.networks.compilation import finds_compiler
from modelserver_handlers.networks.optimize import (
    TOLERANCES,
    NotAsGoodError,
    Substitute,
    deviation,
    probe_batch,
    unsuited,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Run: TypeAlias = "Callable[[torch.Tensor], Any]"

logger = logging.getLogger(__name__)

FORMAT = 1
FOLDER = "ahead"

_INTERMEDIATES = "TORCHINDUCTOR_CACHE_DIR"

# The options of torch.compile that also apply ahead of time.
_UNDERSTOOD = frozenset({"backend", "mode", "options", "dynamic", "fullgraph"})


@dataclass(frozen=True, slots=True)
class Compiled:
    """Code for batches of rows of ``shape``; ``lone``: it may be used for a single row.

    ``several``: it may be used for more than one.
    """

    run: Run
    shape: tuple[int, ...]
    lone: bool
    several: bool

    def suits(self, value: Any) -> bool:
        """Whether it is for this input. The code does not check: other forms would crash the process."""
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.float32
            and value.device.type == "cpu"
            and value.layout == torch.strided
            and value.shape[1:] == self.shape
            and (self.lone if len(value) == 1 else self.several and len(value) > 0)
        )


def compile_ahead(
    model: nn.Module, arguments: Mapping[str, Any], shape: Sequence[int], batch_size: int, precision: str
) -> Compiled | None:
    """Code for float32 batches of rows of ``shape``; None, with a log line, if that fails.

    ``arguments`` are those of torch.compile. ``model`` is not changed.
    """
    if arguments.get("backend", "inductor") != "inductor" or not arguments.keys() <= _UNDERSTOOD:
        return None
    folder = cache.cache_folder(FOLDER)
    if folder is None or unsuited(model):
        return None
    started = time.perf_counter()
    try:
        with torch.no_grad():
            program = _export(model, tuple(shape), batch_size)
            path = folder / f"{_key(program, arguments, precision)}.so"
            with cache.locked(path.with_suffix(".lock")):
                run = cache.read(path, _opened)
                if run is None:
                    if not finds_compiler():
                        return None
                    logger.info(
                        "Compiling the network; the code is kept in %s. If that takes longer than"
                        " startup_timeout, the next process continues it",
                        folder,
                    )
                    run = _make(program, arguments, path)
                    cache.prune(folder, pattern="*.so")
            compiled = _compared(model, run, tuple(shape), batch_size, TOLERANCES[precision])
    except Exception as error:  # whatever user code, the exporter or a compiler raises
        logger.debug("Compiling ahead of time failed", exc_info=True)
        reason = f"{type(error).__name__}: {first_line(error)}"
        logger.info("The network cannot be compiled ahead of time: %s", reason)
        return None
    logger.info("Compiled code was ready in %.1f s", time.perf_counter() - started)
    return compiled


class CompiledForward(Substitute):
    """The compiled ``forward`` of a network."""

    def __init__(self, model: nn.Module, compiled: Compiled) -> None:
        super().__init__(model)
        self._compiled = compiled

    def suits(self, value: Any) -> bool:
        """Whether the code was made for this input, and no gradients are needed."""
        return self._compiled.suits(value) and not torch.is_grad_enabled()

    def compute(self, rows: torch.Tensor) -> Any:
        """The network's outputs."""
        return self._compiled.run(rows.contiguous())


class _OfRows(nn.Module):
    """A network with one argument, even if its own ``forward`` takes more."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, rows: torch.Tensor) -> Any:
        """The network's outputs."""
        return self.model(rows)


def _export(model: nn.Module, shape: tuple[int, ...], batch_size: int) -> ExportedProgram:
    source = _OfRows(model)
    if batch_size == 1:
        return torch.export.export(source, (torch.randn(1, *shape),), strict=False)
    rows = torch.export.Dim("rows", min=2)
    return torch.export.export(
        source, (torch.randn(max(2, batch_size), *shape),), dynamic_shapes=({0: rows},), strict=False
    )


def _key(program: ExportedProgram, arguments: Mapping[str, Any], precision: str) -> str:
    outline = f"{program.graph_module.code}\n{program.graph_signature}"
    constants = {name: each for name, each in program.constants.items() if isinstance(each, torch.Tensor)}
    facts = (
        FORMAT,
        *cache.platform(),
        torch.get_num_threads(),  # their number is compiled into the code
        precision,
        sorted((key, repr(value)) for key, value in arguments.items()),
    )
    return cache.fingerprint(outline, {**program.state_dict, **constants}, *facts)


def _make(program: ExportedProgram, arguments: Mapping[str, Any], path: Path) -> Run:
    """The code, kept under ``path``, whose lock the caller has.

    A process that is killed meanwhile leaves its sources and objects, from which the next one continues.
    """
    folder = path.with_name(f".{path.stem}")
    continues = folder.is_dir()
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        with _intermediates_in(str(folder)):
            package = folder / "network.pt2"
            _inductor().aoti_compile_and_package(
                program, package_path=str(package), inductor_configs=_settings(arguments)
            )
            os.replace(_extract(package, folder), path)
        return _opened(path)
    except Exception:
        if not continues:
            raise
    finally:
        # Several times the size of the weights.
        shutil.rmtree(folder, ignore_errors=True)
    # A file that was left half-written may be the reason.
    return _make(program, arguments, path)


@contextmanager
def _intermediates_in(folder: str) -> Iterator[None]:
    """Only this variable is set and put back: other threads use the environment meanwhile."""
    before = os.environ.get(_INTERMEDIATES)
    os.environ[_INTERMEDIATES] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_INTERMEDIATES]
        else:
            os.environ[_INTERMEDIATES] = before


def _inductor() -> Any:
    from torch import _inductor  # noqa: PLC0415 - seconds of imports

    return _inductor


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    mode = arguments.get("mode")
    by_mode = _inductor().list_mode_options(mode) if mode else {}
    return {"freezing": True, **by_mode, **(arguments.get("options") or {})}


def _extract(package: Path, folder: Path) -> Path:
    """The only library of a package, to be mapped in place; torch's package loader would copy it."""
    with zipfile.ZipFile(package) as content:
        libraries = [name for name in content.namelist() if name.endswith(".so")]
        if len(libraries) != 1 or any(name.endswith(".bin") for name in content.namelist()):
            raise NotAsGoodError(f"its code has {len(libraries)} libraries, or weights beside them")
        library = folder / "network.so"
        with content.open(libraries[0]) as source, library.open("wb") as target:
            shutil.copyfileobj(source, target)
    return library


def _opened(path: Path) -> Run:
    """The code in a file. Raises FileNotFoundError, and RuntimeError for an invalid one."""
    path.stat()
    # As the package loader does, which first copies the library to a temporary folder for each process.
    library = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
    outputs = treespec_loads(library.get_call_spec()[1])

    def run(rows: torch.Tensor) -> Any:
        return tree_unflatten(library.run([rows]), outputs)

    return run


def _compared(
    model: nn.Module, run: Run, shape: tuple[int, ...], batch_size: int, tolerance: float
) -> Compiled:
    """The code for those numbers of rows for which it matches the network.

    It was made for several rows: the network may treat a single one differently.
    """
    probe = probe_batch(shape)
    lone = deviation(run(probe[:1]), model(probe[:1]))
    difference = lone if batch_size == 1 else deviation(run(probe), model(probe))
    if not difference <= tolerance:
        raise NotAsGoodError(f"compiled, its outputs would differ by {difference:.1e} of the largest")
    logger.info("The compiled network's outputs differ by %.1e of the largest", difference)
    return Compiled(run, shape, lone=lone <= tolerance, several=batch_size > 1)
