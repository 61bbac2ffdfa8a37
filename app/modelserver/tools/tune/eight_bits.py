"""``--precision int8``: the model with the inputs as its calibration set, used if it is faster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from modelserver.tools.archiver import ArchiverError
from modelserver.tools.tune.config_file import dump, read
from modelserver.tools.tune.errors import SettingRefused, TuningError
from modelserver.tools.tune.goal import ModelSetting
from modelserver.tools.tune.source import open_source
from modelserver.tools.tune.sweep import GAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from modelserver.tools.tune.bench import Input, LocalBench
    from modelserver.tools.tune.source import ModelSource

FOLDER = "tuning-inputs"  # in the archive
ROWS = 8  # of the batches that are compared
_SECONDS = 4.0
_OURS = {"precision": "int8", "calibration": FOLDER}
# Files of these types would be read as whole calibration sets, while an input is one request.
_SETS = frozenset({".npy", ".json"})


@dataclass(frozen=True, slots=True)
class Trial:
    """The source to tune, and in words why it is this one."""

    source: ModelSource
    outcome: str


def try_int8(
    source: ModelSource,
    inputs: Sequence[Input],
    folder: Path,
    make_bench: Callable[[ModelSource], LocalBench],
    threads: int | None = None,
) -> Trial:
    """The model with ``precision: int8`` and ``inputs`` as its calibration set, if the handler finds it good
    enough and it is at least 3 % faster; otherwise ``source``.

    ``folder`` is for its files. Raises TuningError if the model cannot be served.
    """
    other = with_calibration(source, inputs, folder)
    try:
        rate, precision = _measured(make_bench(other), threads)
    except SettingRefused as refused:
        return Trial(source, f"int8 is not used: {refused}")
    if precision.get("used") != "int8":
        return Trial(source, f"int8 is not used: {precision.get('why', 'the handler has no such setting')}")
    before, _ = _measured(make_bench(source), threads)
    compared = f"{rate:.4g} requests/s in batches of {ROWS}, without it {before:.4g}"
    if rate < GAIN * before:
        return Trial(source, f"int8 is not used, as it is not faster: {compared}")
    return Trial(other, f"int8 is used: {compared}; {precision['why']}")


def with_calibration(source: ModelSource, inputs: Sequence[Input], folder: Path) -> ModelSource:
    """The model with ``precision: int8`` and its inputs, written to ``folder``. Raises TuningError."""
    samples = folder / "samples"
    samples.mkdir(parents=True)
    more: dict[str, Path] = {}
    for number, each in enumerate(inputs):
        suffix = PurePath(each.name).suffix
        path = samples / f"{number:04}{'.body' if suffix in _SETS else suffix}"
        path.write_bytes(each.body)
        more[f"{FOLDER}/{path.name}"] = path
    config = folder / "model-config.yaml"
    config.write_text(int8_config(source.config_text), "utf-8")
    try:
        archive = source.pack(config, folder, more)
    except (ArchiverError, OSError) as error:
        raise TuningError(f"The archive with a calibration set could not be written: {error}") from error
    return replace(open_source(str(archive), None, folder), label=source.label)


def int8_config(original: str | None) -> str:
    """The configuration with our keys under ``handler``; its comments are kept if it had none there."""
    document = yaml.safe_load(original) if original else None
    values: dict[str, Any] = document if isinstance(document, dict) else {}
    handler = values.get("handler")
    changed = values | {"handler": {**(handler if isinstance(handler, dict) else {}), **_OURS}}
    appended = f"{original or ''}\n{dump({'handler': _OURS})}"
    return appended if "handler" not in values and read(appended) == changed else dump(changed)


def _measured(bench: LocalBench, threads: int | None) -> tuple[float, dict[str, str]]:
    """Requests per second, and the precision that is used. Raises Refused, TuningError."""
    with closing(bench):
        bench.serve(ModelSetting(ROWS, threads=threads))
        figure = bench.closed(2 * ROWS, _SECONDS, _SECONDS / 4, 4 * _SECONDS)
        if figure.void:
            raise SettingRefused(figure.reason())
        return figure.rate, bench.description.get("precision") or {}
