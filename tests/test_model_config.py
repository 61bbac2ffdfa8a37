import re

import pytest
import yaml
from docs.model_config import MODELS, default_of, ranks_above, ranks_below, reference

from modelserver.models.options.resolve import PARAMETERS, ModelOptions
from modelserver.models.options.table import CONFIG_KEYS, HANDLER_KEYS, TORCHRUN_KEYS
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import KEYS


def test_every_key_has_one_row():
    tables = re.findall(r"(?m)(^\| key.*\n(?:^\|.*\n)+)", reference())
    rows = re.findall(r"(?m)^\| `([\w-]+)` \|", "".join(tables))

    assert rows == [*CONFIG_KEYS, *HANDLER_KEYS, *TORCHRUN_KEYS]


def test_rows_have_as_many_cells_as_their_heads():
    """A bar within a cell does not end it."""
    for table in re.findall(r"(?m)(?:^\|.*\n)+", reference()):
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize("option", CONFIG_KEYS.values(), ids=CONFIG_KEYS)
def test_what_ranks_above_and_below_exists(option):
    ranks = *ranks_above(option), *ranks_below(option)
    names = [name for text in ranks for name in re.findall(r"`([\w.=]+)`", text)]
    known = {*PARAMETERS, *KEYS, "models=", "batcher.maxBatchSize", "batcher.maxLatency"}

    assert set(names) <= known | {"batcher.timeout"}
    assert (MODELS in ranks_below(option)) == (option.name in ModelDefaults.__slots__)


@pytest.mark.parametrize("option", CONFIG_KEYS.values(), ids=CONFIG_KEYS)
def test_defaults_are_those_in_effect(option):
    """What the page calls the default is what a model without the key gets."""
    default = default_of(option)
    if default and " " not in default and option.name != "client_timeout_ms":
        assert yaml.safe_load(default) == getattr(ModelOptions(), option.name)


def test_the_examples_can_be_used():
    pieces = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)

    assert len(pieces) == 2
    for piece in pieces:
        config, warnings = parse_model_config(piece)
        assert warnings == []
        assert config.raw
