"""An annotated function, served as ``Handler.predict`` is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, get_args, get_origin

from modelserver_handlers.typed.handler import Handler, Types, annotated_types
from modelserver_handlers.typed.signature import element_of

_STEPS = (Generator, Iterator)


class FunctionHandler(Handler):
    """Calls a function with all rows of a batch, or once for each row, as its annotations say.

    It is one of a batch if its argument is a list, an array or a tensor, and its result is, too, or is not
    annotated. Otherwise it is one of a row.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._ms_answering = function.__name__
        self._by_batch = False

    def initialize(self, context: Any) -> None:
        """Reads the annotations. Raises TypeError for those that cannot be used."""
        self.context = context
        function, name = self._function, self._function.__name__
        rows, answers = annotated_types(function, name, 0)
        self._by_batch = _is_batch(rows) and (answers is None or _is_batch(answers))
        if not self._by_batch:
            rows, answers = list[rows], list[answers]  # type: ignore[valid-type]
        self._ms_types = Types.of_function(function, name, rows, answers)

    def predict(self, rows: Any) -> Any:
        """What the function returns."""
        return self._function(rows) if self._by_batch else [self._function(row) for row in rows]


def _is_batch(annotation: Any) -> bool:
    if get_origin(annotation) in _STEPS:
        annotation = next(iter(get_args(annotation)), None)
    try:
        element_of(annotation)
    except TypeError:
        return False
    return annotation not in (None, Any, object)
