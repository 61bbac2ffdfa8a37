"""OpenAI's API as a protocol of the inference address."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from modelserver.ext.openai.codec import NAME, PATHS, OpenAI
from modelserver.ext.openai.meters import LanguageMeters
from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


class Extension:
    """On unless ``openai_api=false``."""

    async def open(self, host: Host) -> None:
        def add(app: Application, services: Services) -> None:
            from modelserver.ext.openai.routes import add_models, describe_endpoints  # noqa: PLC0415 - with FastAPI

            add_models(app, services.registry)
            describe_endpoints(app)

        meters = LanguageMeters(host.services.metrics)
        host.answer(NAME, PATHS, codec=partial(OpenAI, meters=meters))
        host.routes("inference", add)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
