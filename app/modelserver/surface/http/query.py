"""The queries of URLs, which are bounded."""

from __future__ import annotations

from urllib.parse import parse_qsl

from modelserver.errors import BadRequest

# Parameters of a query: more are useless and take long.
MAX_PARAMETERS = 1024


def read_query(query: bytes) -> list[tuple[str, str]]:
    """Names and values of a URL's query, empty ones too. Raises BadRequest for too many."""
    check_query(query)
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def check_query(query: bytes) -> None:
    """Raises BadRequest for too many parameters."""
    count = query.count(b"&")
    if count >= MAX_PARAMETERS:
        raise BadRequest(f"The query has {count + 1} parameters, {MAX_PARAMETERS} are allowed.")
