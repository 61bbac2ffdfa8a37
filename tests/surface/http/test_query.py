"""The queries of URLs."""

from __future__ import annotations

import pytest

from modelserver.errors import BadRequest
from modelserver.surface.http.query import MAX_PARAMETERS, read_query


def test_queries_are_bounded() -> None:
    """A query has as many parameters as it may have, and is refused with more (F14)."""
    assert len(read_query(b"&".join([b"a=%41"] * MAX_PARAMETERS))) == MAX_PARAMETERS
    with pytest.raises(BadRequest, match="The query has 1025 parameters, 1024 are allowed"):
        read_query(b"a&" * MAX_PARAMETERS)
