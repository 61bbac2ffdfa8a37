"""The page docs/model-config.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from modelserver.options.reference import reference
from modelserver.options.resolve import ModelOptions, Registration
from modelserver.options.table import (
    CONFIG_KEYS,
    HANDLER_KEYS,
    MODELS,
    SPECIAL_KEYS,
    TORCHRUN_KEYS,
    ConfigKey,
)
from modelserver.options.yaml_file import parse_model_config
from modelserver.settings.keys import KEYS
from modelserver.settings.model_defaults import ModelDefaults

_PAGE = Path(__file__).parents[2] / "docs" / "model-config.md"


def test_the_page_is_what_the_table_says() -> None:
    """``python -m modelserver.options.reference > docs/model-config.md`` was run after a change."""
    assert _PAGE.read_text(encoding="utf-8") == reference()


def test_every_key_has_one_row() -> None:
    """Those of the server, of ``torchrun`` and of handlers, in the order of the tables."""
    tables = re.findall(r"(?m)(^\| key.*\n(?:^\|.*\n)+)", reference())
    rows = re.findall(r"(?m)^\| `([\w-]+)` \|", "".join(tables))

    assert rows == [*CONFIG_KEYS, *SPECIAL_KEYS, *HANDLER_KEYS, *TORCHRUN_KEYS]


def test_rows_have_as_many_cells_as_their_heads() -> None:
    """A bar within a cell does not end it."""
    for table in re.findall(r"(?m)(?:^\|.*\n)+", reference()):
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize("key", CONFIG_KEYS.values(), ids=lambda key: key.name)
def test_what_ranks_above_and_below_exists(key: ConfigKey) -> None:
    """Parameters of the registration, fields of ``models=``, keys of config.properties."""
    names = [name for text in (*key.above, *key.below) for name in re.findall(r"`([\w.=]+)`", text)]
    known = {*Registration.__slots__, *KEYS, "models=", "batcher.maxBatchSize", "batcher.maxLatency"}

    assert set(names) <= known | {"batcher.timeout"}
    assert (MODELS in key.below) == (key.field in ModelDefaults.__slots__)


@pytest.mark.parametrize("key", CONFIG_KEYS.values(), ids=lambda key: key.name)
def test_defaults_are_those_in_effect(key: ConfigKey) -> None:
    """What the page calls the default is what a model without the key gets."""
    if key.default and " " not in key.default and key.field != "client_timeout_ms":
        assert yaml.safe_load(key.default) == getattr(ModelOptions(), key.field)


def test_the_examples_can_be_used() -> None:
    """Each piece of YAML on the page is read without a warning."""
    pieces = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)

    assert len(pieces) == 2
    for piece in pieces:
        config, warnings = parse_model_config(piece)
        assert warnings == []
        assert config.raw
