"""Streams as many parts as the body says, the last of which is what it returns."""

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    parts = int(data[0]["body"])
    for number in range(parts - 1):
        text = [f"part {number};"] * len(data)
        send_intermediate_predict_response(text, context.request_ids, "more", 200, context)
    return ["end"] * len(data)
