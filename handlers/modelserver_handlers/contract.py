"""What a handler must return: a list with one answer for each instance."""

from __future__ import annotations

from typing import Any


class ContractBroken(Exception):
    """The handler did not return one answer per instance; ``short`` is TorchServe's message.

    ``method`` is what returned it.
    """

    def __init__(self, short: str, message: str, method: str = "handle") -> None:
        super().__init__(message)
        self.short = short
        self.method = method


def check_contract(outputs: Any, expected: int, method: str = "handle") -> None:
    """Raises :class:`ContractBroken` unless ``outputs`` of the method is a list of ``expected`` answers."""
    if not isinstance(outputs, list):
        raise ContractBroken(
            "Invalid model predict output",
            f"The handler returned {type(outputs).__name__}, a list is needed.",
            method,
        )
    if len(outputs) != expected:
        raise ContractBroken(
            "number of batch response mismatched",
            "size of prediction is not equal to the size of instances: "
            f"expected {expected}, the handler returned {len(outputs)}",
            method,
        )
