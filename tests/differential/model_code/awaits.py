"""An asynchronous handler: answers at once, in parts, or fails, as its body says."""

import asyncio

from ts.handler_utils.utils import send_intermediate_predict_response


class Awaits:
    def initialize(self, context):
        self.initialized = True

    async def handle(self, data, context):
        body = data[0]["body"] if isinstance(data[0]["body"], str) else bytes(data[0]["body"]).decode()
        await asyncio.sleep(0.01)
        if body == "raise":
            raise ValueError("told to")
        if body == "parts":
            send_intermediate_predict_response(["one;"], context.request_ids, "", 200, context)
            await asyncio.sleep(0.01)
            send_intermediate_predict_response(["two;"], context.request_ids, "", 200, context)
            return ["three"]
        if body == "status":
            context.set_response_status(202, "", 0)
        return [f"{body} of {len(data)}"]
