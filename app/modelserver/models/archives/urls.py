"""Which URLs models may come from (reference 10.4, design 7 and 9; F62).

Unless the operator sets ``allowed_urls``, only public http(s) hosts are allowed: every address that a host
name resolves to must be public, and the connection uses the very address that was checked, so that a second
DNS answer cannot change it. URLs that the operator allowed are not checked further. Proxies from the
environment are not used: they would resolve the name again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from modelserver.errors import ModelNotFound
from modelserver.models.settings.settings import ANY_URL

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""From host and port to addresses; raises ``OSError`` if there are none."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """The operator's ``allowed_urls``, or the default that allows public hosts only."""

    allowed: tuple[re.Pattern[str], ...] = ANY_URL
    operator_set: bool = False

    def check(self, url: str, *, original: str | None = None) -> None:
        """Raise ``ModelNotFound`` unless this URL, one with a scheme, may be used.

        ``original`` is the URL that redirected here.
        """
        named = url if original is None else original
        # Object stores are read with the server's credentials.
        if scheme(url) not in ("http", "https") and not self.operator_set:
            raise refusal(named, f"{scheme(url)}:// needs an allowed_urls in the configuration")
        if not any(pattern.fullmatch(url) for pattern in self.allowed):
            raise refusal(named, "" if original is None else "it redirects elsewhere")
        if (problem := _disguise(url)) is not None:
            raise refusal(named, problem)

    def check_host(self, url: str, *, is_public: bool) -> None:
        """Raise ``ModelNotFound`` for a host that is not public, unless the operator set the URLs."""
        if not self.operator_set and not is_public:
            raise refusal(url, "its host is not public, which only allowed_urls can permit")


def scheme(url: str) -> str | None:
    """The scheme of a URL in lower case, ``None`` for a plain name."""
    match = _SCHEME.match(url)
    return match.group(1).lower() if match else None


def leaves_its_place(url: str) -> bool:
    """Whether ``..`` occurs in the URL, percent-encoded or not (reference 5.2)."""
    for _ in range(3):
        if ".." in url:
            return True
        url = unquote(url)
    return ".." in url


def refusal(url: str, reason: str = "") -> ModelNotFound:
    """TorchServe's error for a URL that is not allowed, with the reason if the rule is ours."""
    text = f"Given URL {url} does not match any allowed URL(s)"
    return ModelNotFound(f"{text}: {reason}" if reason else text)


def _disguise(url: str) -> str | None:
    """Why a URL may lead elsewhere than it seems to, or ``None``."""
    if any(c <= " " or c in "\\\x7f" or "\ud800" <= c <= "\udfff" for c in url):
        return "spaces, control characters, backslashes and halves of characters are not allowed"
    # Parsed as the client does. Most servers never need this import (60 ms).
    import httpx  # noqa: PLC0415

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return None  # no place at all: the download says so
    if parsed.userinfo:
        return "credentials are not allowed in it"
    return "'..' is not allowed in it" if leaves_its_place(url) else None
