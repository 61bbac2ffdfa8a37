"""An asynchronous handler: its calls wait for each other, stream, fail or hang, as bodies say."""

import asyncio
from pathlib import Path

from modelserver_handlers.streaming import send_intermediate_predict_response


def note(path):
    Path(path).write_text("cancelled")


class Meeting:
    async def initialize(self, context):
        await asyncio.sleep(0)
        self.waiting = 0
        self.met = asyncio.Event()

    async def handle(self, data, context):
        order = data[0]["body"]
        if "meet" in order:
            await self.meet(order["meet"])
        for part in order.get("parts", ()):
            await asyncio.sleep(0)
            send_intermediate_predict_response([part], context.request_ids, "Intermediate", 200, context)
        if order.get("do") == "fail":
            raise ValueError("told to fail")
        if order.get("do") == "hang":
            await self.hang(order)
        context.set_response_header(0, "x-name", order["name"])
        return [f"{order['name']} {context.get_request_id(0)}"]

    async def meet(self, count):
        self.waiting += 1
        if self.waiting == count:
            self.met.set()
        await self.met.wait()

    async def hang(self, order):
        if "began" in order:
            note(order["began"])
        try:
            await asyncio.sleep(3600)
        finally:
            if "notes" in order:
                note(order["notes"])
