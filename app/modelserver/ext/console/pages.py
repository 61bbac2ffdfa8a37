"""The files of the page, and the headers that say what a browser may do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.responses import Response

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ALWAYS: Final = {"referrer-policy": "no-referrer", "cross-origin-resource-policy": "same-origin"}
_PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# What a handler answers may be a page: it must not run as the console.
_DATA_POLICY: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"

PAGE_HEADERS: Final = {**_ALWAYS, "content-security-policy": _PAGE_POLICY}
DATA_HEADERS: Final = {**_ALWAYS, "content-security-policy": _DATA_POLICY}


class Pages:
    """The files, read once."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(_FOLDER).as_posix(): path.read_bytes()
            for path in _FOLDER.rglob("*")
            if path.suffix in _TYPES
        }

    def get(self, name: str) -> Response | None:
        """The file of this name, if there is one."""
        content = self._files.get(name)
        if content is None:
            return None
        return Response(content, headers={**PAGE_HEADERS, "content-type": _TYPES[Path(name).suffix]})
