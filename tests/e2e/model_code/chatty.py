"""Chats that do what the last message says: count to a number, wait, fail, or end the process."""

import asyncio
import os
import time

import modelserver


class Chatty(modelserver.ChatModel):
    async def chat(self, request):
        verb, _, argument = request.messages[-1].text.partition(" ")
        if verb == "count":
            for number in range(int(argument)):
                yield f"{number} "
            return
        if verb == "once":
            # The process ends for the first one of these.
            if not exists(argument):
                os.mknod(argument)
                os._exit(1)
            yield "again "
            return
        yield "begun "
        if verb == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                write_time(argument)
        if verb == "until":
            while not exists(argument):  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            yield "end "
            return
        if verb == "fail":
            raise RuntimeError("no more words")
        await asyncio.sleep(0.1)
        os._exit(1)

    def complete(self, request, prompt):
        return f"{prompt}!"


def exists(path):
    return os.path.exists(path)


def write_time(path):
    with open(path, "x") as file:
        file.write(str(time.monotonic()))
