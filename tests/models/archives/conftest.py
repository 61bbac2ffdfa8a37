"""What tests of this folder share."""

from __future__ import annotations

import re

from modelserver.models.archives.urls import UrlPolicy


def allowing(*patterns: str) -> UrlPolicy:
    """The policy of an operator who set these."""
    return UrlPolicy(tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns), operator_set=True)
