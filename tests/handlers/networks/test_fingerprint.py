"""What a network is, in one short text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modelserver_handlers.networks.cache import fingerprint

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.empty(0)}


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.arange(6.0).reshape(3, 2)},
        {"a": torch.arange(6).reshape(2, 3)},
        {"a": torch.arange(6.0).reshape(2, 3) + torch.tensor([0, 0, 1e-6])},
        {"b": torch.tensor(4)},
        {"d": torch.tensor(3)},
    ],
)
def test_every_difference_counts(change: dict[str, Any]) -> None:
    """Another shape, type, value or name gives another fingerprint."""
    assert fingerprint("net", TENSORS) != fingerprint("net", TENSORS | change)


def test_the_rest_counts_too() -> None:
    """So do the outline and what else is named; equal networks have equal ones, however they lie."""
    turned = TENSORS | {"a": TENSORS["a"].t().contiguous().t()}

    assert (
        len({fingerprint("net", TENSORS), fingerprint("other", TENSORS), fingerprint("net", TENSORS, 1)}) == 3
    )
    assert fingerprint("net", TENSORS) == fingerprint("net", turned)
