"""Methods of handlers whose names are probably misspelt: the server calls them by name, so it never would.

Importing this imports neither torch nor the other modules of handlers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import CodeType
from typing import Any, Final

_ALIKE: Final = 0.75


def near_misses(kind: type[Any], called: Iterable[str]) -> dict[str, str]:
    """The name that is meant to each method that looks like it, and that the class itself does not call.

    ``called`` are the names that the server calls; those that the class has are left out.
    """
    methods = {
        name: value
        for each in reversed(kind.__mro__)
        if each.__module__.partition(".")[0] != __package__
        for name, value in vars(each).items()
        if inspect.isfunction(value)
    }
    called = list(called)
    used = {name for method in methods.values() for name in _names(method.__code__)}
    others = [
        name for name in methods if name not in used and name not in called and not name.startswith("_")
    ]
    close = {name: get_close_matches(name, others, 1, _ALIKE) for name in called if name not in methods}
    return {matches[0]: name for name, matches in close.items() if matches}


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function uses, and those inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
