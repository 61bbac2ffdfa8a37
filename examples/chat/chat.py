"""A chat that turns what it hears into questions, as ELIZA did in 1966, and answers word by word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import modelserver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from modelserver_handlers.language.requests import ChatRequest

RULES = [
    (r"i need (.*)", "Why do you need {}?"),
    (r"i am (.*)", "How long have you been {}?"),
    (r"why (.*)", "Why do you think {}?"),
    (r"(hello|hi)\b.*", "Hello. What would you like to talk about?"),
    (r"(.*)", "Please tell me more about that."),
]
OTHER = {"i": "you", "me": "you", "my": "your", "am": "are", "you": "I", "your": "my"}


class Eliza(modelserver.ChatModel):
    async def chat(self, request: ChatRequest) -> AsyncIterator[str]:
        line = request.messages[-1].text.lower().strip(" .!?")
        match, reply = next((match, reply) for rule, reply in RULES if (match := re.fullmatch(rule, line)))
        about = " ".join(OTHER.get(word, word) for word in match[1].split())
        for number, word in enumerate(reply.format(about).split()):
            yield word if number == 0 else f" {word}"
