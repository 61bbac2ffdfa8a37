"""``/token``: replaces a token (reference 16.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations at run time
from starlette.responses import Response

from modelserver.errors import ConfigError, InternalError, ResourceNotFound
from modelserver.surface.api.application import ANY_METHOD
from modelserver.surface.api.models import TokenQuery
from modelserver.surface.auth.errors import InvalidKey
from modelserver.surface.auth.scopes import TOKEN_PATH, Scope
from modelserver.surface.http.answers import JSON

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application
    from modelserver.surface.auth.keeper import TokenKeeper

_RENEWABLE = {scope.value: scope for scope in (Scope.MANAGEMENT, Scope.INFERENCE)}


def add_token_renewal(app: Application, tokens: TokenKeeper | None) -> None:
    """Adds the route; the API token was checked before."""

    async def renew(request: Request) -> Response:
        if tokens is None:
            raise ResourceNotFound
        scope = _RENEWABLE.get(request.query_params.get("type", ""))
        if scope is None:
            raise InvalidKey(Scope.API)
        try:
            tokens.renew(scope)
        except ConfigError as error:
            raise InternalError(str(error)) from error
        # As in TorchServe, the new token is read from the file.
        return Response(b"\n", media_type=JSON)

    app.section("Management")(
        renew,
        f"get {TOKEN_PATH}",
        "renewToken",
        "Replace a token; needs the API token. 404 without tokens.",
        None,
        (400, 404, 409),
        "An empty line; the new token is in key_file.json.",
        query=TokenQuery,
        others=(*ANY_METHOD, "options"),
    )
