"""Answers with its version, unless a row says what version 2.0 is to do: ``same``, ``close``, ``fail``…"""

import json
import os
import time

from modelserver_handlers.streaming import send_intermediate_predict_response


class Variants:
    # A chat's one message is the order.
    _ms_endpoints = {"v1/chat/completions": False}  # noqa: RUF012 - of one instance

    def initialize(self, context):
        self.context = context
        self.version = context.manifest["model"]["modelVersion"]

    def handle(self, data, context):
        orders = [text_of(row) for row in data or []]
        if "parts" in orders:
            send_intermediate_predict_response(
                [self.version] * len(orders), context.request_ids, "", 200, context
            )
        return [self.answer(order) for order in orders]

    def answer(self, order):
        is_new = self.version == "2.0"
        if order == "same":
            return "same"
        if order.startswith("own-"):
            return f"{order} of {self.version}"
        if order == "scores":
            return {"cat": 0.6 if is_new else 0.9, "dog": 0.1}
        if order == "close":
            return {"score": 0.5000001 if is_new else 0.5}
        if order == "shape":
            return [1, 2] if is_new else {"a": 1}
        if is_new and order == "fail":
            raise ValueError("as it was told")
        if is_new and order == "die":
            os._exit(3)
        if order == "nap" and is_new:
            time.sleep(0.5)
        return self.version


def text_of(row):
    """The text in whatever form the protocol gives it."""
    value = row.get("data", row.get("body", row)) if isinstance(row, dict) else row
    if b'"messages"' in bytes(value if isinstance(value, (bytes, bytearray)) else b""):
        return json.loads(value)["messages"][0]["content"]
    if isinstance(value, dict):
        value = value.get("data", "")
    return bytes(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)
