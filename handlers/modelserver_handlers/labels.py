"""Class numbers to names (reference 13.1)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

LABELS_FILE = "index_to_name.json"


def load_label_mapping(mapping_file_path: str | Path) -> dict[str, str] | None:
    """Class number (as str) to label, from a JSON file; None with a warning if there is no such file.

    Raises ValueError with TorchServe's texts for a file of another form.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        logger.warning("%s is missing. Inference output will not include class name.", path.name)
        return None
    mapping = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(mapping, dict):
        raise ValueError('index->name JSON mapping should be in "class": "label" format.')  # noqa: TRY004
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        mapping = {str(index): name for index, name in enumerate(names)}
    return {key: _label(value) for key, value in mapping.items()}


class Labels:
    """The labels of a model by index, read when they are first needed; none if there is no such file."""

    def __init__(self, model_dir: str) -> None:
        self._path = Path(model_dir) / LABELS_FILE
        self._read: Mapping[str, str] | None = None

    def __call__(self) -> Mapping[str, str]:
        if self._read is None:
            self._read = {}
            try:
                if self._path.is_file():
                    self._read = load_label_mapping(self._path) or {}
            except (OSError, ValueError) as error:
                logger.warning("Classes are answered without labels: %s: %s", self._path.name, error)
        return self._read


def _label(value: object) -> str:
    if isinstance(value, list) and value:
        value = value[-1]
    if not isinstance(value, str):
        raise ValueError("labels in index->name mapping must be either str or List[str]")  # noqa: TRY004
    return value


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Sequence[Sequence[Any]] | None = None,
) -> list[dict[str, float]]:
    """One ``{label: probability}`` per row, in the order given.

    ``lbl_classes`` holds each row's class numbers; without it they are 0, 1, 2, ... Raises TypeError with
    TorchServe's texts, and KeyError for a class that ``mapping`` does not name.
    """
    if not isinstance(probs, list):
        raise TypeError("Convert classes to list before doing mapping")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError("Mapping must be a dict")
    classes = [range(len(row)) for row in probs] if lbl_classes is None else lbl_classes
    return [
        {
            str(number) if mapping is None else mapping[str(number)]: probability
            for number, probability in zip(numbers, row, strict=False)
        }
        for row, numbers in zip(probs, classes, strict=False)
    ]
