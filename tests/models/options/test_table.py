"""The rows of all options, and the values that they are of."""

from __future__ import annotations

from dataclasses import fields

from modelserver.models.options.resolve import REQUESTABLE, ModelOptions, Registration, resolve_options
from modelserver.models.options.table import (
    CHANGEABLE,
    CONFIG_KEYS,
    HANDLER_KEYS,
    KNOWN,
    OPTIONS,
    ModelConfig,
)
from modelserver.models.settings.settings import Settings


def test_every_field_has_a_row() -> None:
    """What the file may say is a row each, no key has two, and none is a handler's."""
    assert [*OPTIONS] == [field.name for field in fields(ModelConfig) if field.name != "raw"]
    assert len(CONFIG_KEYS) == len(OPTIONS)
    assert len(KNOWN) == len(CONFIG_KEYS) + len(HANDLER_KEYS)


def test_every_option_has_a_value() -> None:
    """A model has a value of each, and where nobody says anything that is the server's default."""
    values = {field.name for field in fields(ModelOptions)} | set(ModelOptions().values)
    assert set(OPTIONS) <= values

    untouched = resolve_options(
        "m", "1.0", Registration(), None, Settings(), at_startup=False, device_count=0, cpu_count=2
    )
    for name in OPTIONS:
        assert getattr(untouched, name) == getattr(ModelOptions(), name), name


def test_who_may_say_what() -> None:
    """What changes while a model runs, and what its registration names, is known to the file too."""
    assert set(CHANGEABLE) <= set(REQUESTABLE) <= set(OPTIONS)
    assert all(hasattr(Settings(), option.setting) for option in OPTIONS.values() if option.setting)
    assert {name for name, option in OPTIONS.items() if option.requested} == set(REQUESTABLE)
