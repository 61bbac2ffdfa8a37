from dataclasses import fields

from tests.models.options.conftest import resolve

from modelserver.models.options.resolve import REQUESTABLE, ModelOptions
from modelserver.models.options.table import (
    CHANGEABLE,
    CONFIG_KEYS,
    HANDLER_KEYS,
    KNOWN,
    OPTIONS,
    ModelConfig,
)
from modelserver.models.settings.settings import Settings


def test_every_field_and_option_has_a_row():
    assert [*OPTIONS] == [field.name for field in fields(ModelConfig) if field.name != "raw"]
    assert len(CONFIG_KEYS) == len(OPTIONS)
    assert len(KNOWN) == len(CONFIG_KEYS) + len(HANDLER_KEYS)

    values = {field.name for field in fields(ModelOptions)} | set(ModelOptions().values)
    assert set(OPTIONS) <= values

    untouched = resolve()
    for name in OPTIONS:
        assert getattr(untouched, name) == getattr(ModelOptions(), name), name

    assert set(CHANGEABLE) <= set(REQUESTABLE) <= set(OPTIONS)
    assert all(hasattr(Settings(), option.setting) for option in OPTIONS.values() if option.setting)
    assert {name for name, option in OPTIONS.items() if option.requested} == set(REQUESTABLE)
