"""Lists of names and URLs, a page at a time (reference 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from modelserver.surface.http.answers import JSON, pretty

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelserver.surface.api.parameters import Parameters

_MOST = 100


def one_page(kind: str, urls: Mapping[str, str], parameters: Parameters) -> Response:
    """Those of a kind ("model") by name, ``limit`` of them from ``next_page_token`` on."""
    limit = parameters.integer("limit", _MOST)
    if limit is None or not 0 <= limit <= _MOST:
        limit = _MOST
    start = max(0, parameters.integer("next_page_token", 0) or 0)
    page = [{f"{kind}Name": name, f"{kind}Url": url} for name, url in sorted(urls.items())]
    token = {"nextPageToken": str(start + limit)} if start + limit <= len(page) else {}
    return Response(pretty({**token, f"{kind}s": page[start : start + limit]}), media_type=JSON)
