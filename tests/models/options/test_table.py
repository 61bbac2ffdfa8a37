from dataclasses import fields

from tests.models.options.conftest import resolve

from modelserver.models.options import table
from modelserver.models.options.resolve import REQUESTABLE, ModelOptions
from modelserver.models.settings.settings import Settings


def test_every_field_and_option_has_a_row():
    assert [*table.OPTIONS] == [field.name for field in fields(table.ModelConfig) if field.name != "raw"]
    assert len(table.CONFIG_KEYS) == len(table.OPTIONS)
    assert len(table.KNOWN) == len(table.CONFIG_KEYS) + len(table.HANDLER_KEYS)

    values = {field.name for field in fields(ModelOptions)} | set(ModelOptions().values)
    assert set(table.OPTIONS) <= values

    untouched = resolve()
    for name in table.OPTIONS:
        assert getattr(untouched, name) == getattr(ModelOptions(), name), name

    assert set(table.CHANGEABLE) <= set(REQUESTABLE) <= set(table.OPTIONS)
    assert all(hasattr(Settings(), option.setting) for option in table.OPTIONS.values() if option.setting)
    assert {name for name, option in table.OPTIONS.items() if option.requested} == set(REQUESTABLE)
