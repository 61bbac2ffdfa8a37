"""Chats that do what the last message says: count to a number, wait for ever, fail, or end the process."""

import asyncio
import os

import modelserver


class Chatty(modelserver.ChatModel):
    async def chat(self, request):
        verb, _, argument = request.messages[-1].text.partition(" ")
        if verb == "count":
            for number in range(int(argument)):
                yield f"{number} "
            return
        yield "begun "
        if verb == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                os.mknod(argument)
        if verb == "fail":
            raise RuntimeError("no more words")
        await asyncio.sleep(0.1)
        os._exit(1)
