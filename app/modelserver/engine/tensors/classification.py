"""Triton's parameter by which a client asks for the classes of an output instead of its tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelserver.errors import BadRequest

if TYPE_CHECKING:
    from modelserver.engine.tensors.rest import RequestedOutput

CLASSIFICATION = "classification"


def check_classification(outputs: Sequence[RequestedOutput]) -> None:
    """Raises BadRequest unless each number of classes is a whole one, or 0 for the tensor itself."""
    for each in outputs:
        count = each.parameters.get(CLASSIFICATION, 0)
        if type(count) is not int or count < 0:
            raise BadRequest(
                f"output '{each.name}': parameter {CLASSIFICATION} is {count!r}, "
                "a number of classes is needed"
            )
