"""Request headers as handlers see them."""

from __future__ import annotations

from typing import Any


class Headers(dict[str, Any]):
    """A dict of headers that keeps the case the client sent and is looked up in any case.

    Two names that differ in case only are both kept, as in TorchServe (reference 7.3); a lookup in a third
    case finds the later one. Deleting and replacing need the exact name.
    """

    def _actual(self, key: object) -> str | None:
        if isinstance(key, str):
            wanted = key.lower()
            return next((name for name in reversed(self) if name.lower() == wanted), None)
        return None

    def __missing__(self, key: str) -> Any:
        actual = self._actual(key)
        if actual is None:
            raise KeyError(key)
        return self[actual]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._actual(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value under ``key`` in any case, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def copy(self) -> Headers:
        """Another one with the same entries."""
        return Headers(self)
