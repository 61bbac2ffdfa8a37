"""``/token``: a new token in place of an old one (reference 16.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.auth.errors import InvalidKey
from modelserver.auth.scopes import TOKEN_PATH, Scope
from modelserver.errors import ConfigError, InternalError
from modelserver.http.answers import JSON

if TYPE_CHECKING:
    from fastapi import FastAPI

    from modelserver.auth.keeper import TokenKeeper

_RENEWABLE = {scope.value: scope for scope in (Scope.MANAGEMENT, Scope.INFERENCE)}


def add_token_renewal(app: FastAPI, tokens: TokenKeeper, methods: list[str]) -> None:
    """Adds the route; that the request has the API token was seen before it came here."""

    async def renew(request: Request) -> Response:
        scope = _RENEWABLE.get(request.query_params.get("type", ""))
        if scope is None:
            raise InvalidKey(Scope.API)
        try:
            tokens.renew(scope)
        except ConfigError as error:
            raise InternalError(str(error)) from error
        # As in TorchServe, the new token is read from the file.
        return Response(b"\n", media_type=JSON)

    app.add_api_route(TOKEN_PATH, renew, methods=methods)
