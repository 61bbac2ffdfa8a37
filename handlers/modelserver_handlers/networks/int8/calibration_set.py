"""The rows that ``handler: calibration:`` names: what a network in 8 bits is measured with."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch

from modelserver_handlers.errors import first_line
from modelserver_handlers.networks.int8.quantisation import NotInt8Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

MOST_ROWS = 128


def calibration_rows(folder: Path, name: str, prepare: Callable[[list[Any]], Any]) -> torch.Tensor:
    """The network's input for the calibration set: n rows, at most 128.

    ``name`` is a file, a folder or a pattern (`samples/*.jpg`) in the archive's ``folder``; ``prepare`` makes
    the network's input of what a client may send. Of a file ``.npy`` each row is an input as it is, of a
    list in a file ``.json`` each element is one to prepare, and so is any other file. Files that cannot be
    read are left out. Raises NotInt8Error if none can, or their rows have different shapes.
    """
    rows: list[torch.Tensor] = []
    failures: list[str] = []
    for path in _files(folder, name):
        try:
            rows += _read(path, prepare)
        except Exception as error:  # noqa: BLE001 - libraries and handlers raise anything for broken files
            failures.append(f"{path.name}: {first_line(error)}")
        if len(rows) >= MOST_ROWS:
            break
    if failures:
        logger.warning("Left out of the calibration set: %s", "; ".join(failures[:5]))
    if not rows:
        raise NotInt8Error(f"the calibration set {name!r} has no file that can be read")
    shapes = {tuple(row.shape) for row in rows}
    if len(shapes) > 1:
        raise NotInt8Error(f"the rows of the calibration set have different shapes: {sorted(shapes)[:3]}")
    return torch.stack(rows[:MOST_ROWS])


def _files(folder: Path, name: str) -> list[Path]:
    """In the order of their names. Raises NotInt8Error if there are none, or they are elsewhere."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise NotInt8Error(f"the calibration set {name!r} must be in the archive")
    place = folder / name
    try:
        candidates = [place] if place.is_file() else place.iterdir() if place.is_dir() else folder.glob(name)
        files = sorted(path for path in candidates if path.is_file())
    except (OSError, ValueError, NotImplementedError) as error:
        raise NotInt8Error(f"the calibration set {name!r} cannot be read: {error}") from error
    if not files:
        raise NotInt8Error(f"the archive has no calibration set {name!r}, or it is empty")
    return files


def _read(path: Path, prepare: Callable[[list[Any]], Any]) -> Iterator[torch.Tensor]:
    if path.suffix == ".npy":
        rows = numpy.load(path, mmap_mode="r", allow_pickle=False)[:MOST_ROWS]
        return iter(torch.from_numpy(rows.astype(numpy.float32)))
    if path.suffix == ".json":
        elements = json.loads(path.read_bytes())
        if not isinstance(elements, list):
            raise ValueError("a list of inputs is needed")
        return (row for each in elements[:MOST_ROWS] for row in _prepared(each, prepare))
    return iter(_prepared(path.read_bytes(), prepare))


def _prepared(value: Any, prepare: Callable[[list[Any]], Any]) -> torch.Tensor:
    rows = prepare([{"data": value}])
    if not isinstance(rows, torch.Tensor) or not rows.numel():
        raise ValueError("it cannot be prepared")
    return rows
