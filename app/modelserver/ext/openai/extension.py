"""OpenAI's API as a protocol of the inference address."""

from __future__ import annotations

from functools import partial

from modelserver.ext.openai.codec import NAME, PATHS, OpenAI
from modelserver.ext.openai.meters import LanguageMeters
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On unless ``openai_api=false``."""
    meters = LanguageMeters(host.services.metrics)
    host.answer(NAME, PATHS, codec=partial(OpenAI, meters=meters))
    host.routes("inference", "modelserver.ext.openai.routes")
