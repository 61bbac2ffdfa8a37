"""What the core asks of the stores without one being reached."""

from __future__ import annotations

from modelserver.ext.stores.extension import Stores


def test_options_of_a_hub_model_are_not_its_address() -> None:
    """They are for the handler, and the rest is what is fetched."""
    assert Stores().without_options("hf://org/name?task=rerank&engine=transformers") == "hf://org/name"
