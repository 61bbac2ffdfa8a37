"""Parameters of the management API, read as leniently as TorchServe reads them (reference 4.1, 5.2)."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from modelserver.errors import BadRequest
from modelserver.models.settings.model_defaults import meant
from modelserver.surface.http.answers import JSON, pretty
from modelserver.surface.http.content import read_parameters_body
from modelserver.surface.http.trace_context import trace_context

if TYPE_CHECKING:
    from starlette.requests import Request

# Characters of one value: URLs are the longest.
LONGEST = 8192

_log = logging.getLogger("modelserver.api")


# Characters of a name: known ones are shorter.
LONGEST_NAME = 50
# Entries of a page of a list.
_LONGEST_PAGE = 100
# How many unknown names are warned of.
_MOST_WARNINGS = 10


class Parameters:
    """Values by name, from the query or from a JSON body.

    ``warnings`` are about values that are not used as the client may expect; they are logged too. ``trace``
    is the client's trace, of the request's headers.
    """

    def __init__(self, values: Mapping[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._values = values
        self.trace = trace_context(headers)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)

    def warn_of_unknown(self, known: Collection[str]) -> None:
        unknown = [name[:LONGEST_NAME] for name in self._values if name not in known]
        for name in unknown[:_MOST_WARNINGS]:
            self.warn(f"The parameter {name!r} is unknown and is ignored{meant(name, known)}")

    @classmethod
    def of_query(cls, request: Request) -> Parameters:
        """The query's parameters; of repeated ones the first."""
        values: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            values.setdefault(name, value)
        return cls(values, request.headers.raw)

    @classmethod
    async def of_registration(cls, request: Request) -> Parameters:
        """The fields of a JSON body if the content type is JSON (the query is ignored then), or the query's.

        Raises:
            BadRequest: the body is not a JSON object.
            PayloadTooLarge: the body is over the limit for parameters.
        """
        content_type = request.headers.get("content-type", "").partition(";")[0].strip()
        if content_type != "application/json":
            return cls.of_query(request)
        try:
            values = json.loads(await read_parameters_body(request))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"The body is not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise BadRequest("The body must be a JSON object of parameters.")
        values = {name: value for name, value in values.items() if value is not None}
        return cls(values, request.headers.raw)

    def text(self, name: str) -> str | None:
        """The value as text; None if it is not given. Raises BadRequest for one that is too long."""
        value = self._values.get(name)
        text = None if value is None else str(value)
        if text is not None and len(text) > LONGEST:
            raise BadRequest(f"{name} has {len(text)} characters, {LONGEST} are allowed.")
        return text

    def integer(self, name: str, default: int | None = None) -> int | None:
        """The value as a whole number; anything else gives the default, with a warning."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return int(value.strip())
        except ValueError:
            self.warn(f"The parameter {name}={value[:100]!r} is not a whole number, its default is used")
            return default

    def boolean(self, name: str) -> bool | None:
        """True only for ``true`` in any case; None if it is not given."""
        value = self.text(name)
        if value is None:
            return None
        text = value.strip().lower()
        if text not in ("true", "false"):
            self.warn(f"The parameter {name}={text[:100]!r} is neither true nor false, false is used")
        return text == "true"

    def whole(self, name: str) -> int | None:
        """Like :meth:`integer`, but raises BadRequest: for parameters that TorchServe does not have."""
        value = self.text(name)
        if value is None or not value.strip():
            return None
        try:
            return int(value.strip())
        except ValueError:
            raise BadRequest(f"{name}={value[:100]}: a whole number is needed") from None

    def switch(self, name: str) -> bool | None:
        """Like :meth:`boolean`, but raises BadRequest: for parameters that TorchServe does not have."""
        value = self.text(name)
        if value is None or not value.strip():
            return None
        if value.strip().lower() not in ("true", "false"):
            raise BadRequest(f"{name}={value[:100]}: true or false is needed")
        return self.boolean(name)

    def page(self, kind: str, urls: Mapping[str, str]) -> Response:
        """A page of names and URLs of a kind ("model"): ``limit`` from ``next_page_token`` on (reference
        5.5).
        """
        token, page = self.part([{f"{kind}Name": n, f"{kind}Url": url} for n, url in sorted(urls.items())])
        return Response(pretty({**token, f"{kind}s": page}), media_type=JSON)

    def part(self, rows: list[Any]) -> tuple[dict[str, str], list[Any]]:
        """A page of the rows, and ``nextPageToken`` if there may be more."""
        number = self.integer("limit")
        limit = _LONGEST_PAGE if number is None or not 0 <= number <= _LONGEST_PAGE else number
        start = max(0, self.integer("next_page_token", 0) or 0)
        token = {"nextPageToken": str(start + limit)} if start + limit <= len(rows) else {}
        return token, rows[start : start + limit]


async def read_object(request: Request, *, required: bool = False) -> dict[str, Any]:
    """The body's JSON object, {} without a body unless required. Raises BadRequest, PayloadTooLarge."""
    body = await read_parameters_body(request)
    if not body.strip() and not required:
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not a JSON object: {error}") from error
