"""Values of ``handler`` of model-config.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.handler_options import handler_settings, probability, whole_number


@pytest.mark.parametrize("document", [{}, {"handler": None}, {"handler": "x"}, {"handler": ["a"]}])
def test_only_a_mapping_counts(document: dict[str, Any]) -> None:
    """Anything else under ``handler`` is as if nothing stood there."""
    assert handler_settings({"handler": {"a": 1}}) == {"a": 1}
    assert handler_settings(document) == {}


def test_defaults_and_values() -> None:
    """A value counts where there is one."""
    assert (whole_number({}, "k", 5), whole_number({"k": 2}, "k", 5)) == (5, 2)
    assert (probability({}, "k", 0.5), probability({"k": 1}, "k", 0.5)) == (0.5, 1.0)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None, [1]])
def test_what_is_no_whole_number(value: object) -> None:
    """The message names key and value."""
    with pytest.raises(ModelLoadError, match="handler: k must be a whole number of at least 1"):
        whole_number({"k": value}, "k", 5)


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "0.5", None, float("nan")])
def test_what_is_no_probability(value: object) -> None:
    """The message names key and value."""
    with pytest.raises(ModelLoadError, match="handler: k must be a number from 0 to 1"):
        probability({"k": value}, "k", 0.5)
