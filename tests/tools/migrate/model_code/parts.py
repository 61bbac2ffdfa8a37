"""Answers every request in two parts."""

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    send_intermediate_predict_response(["one, "] * len(data), context.request_ids, "", 200, context)
    return ["two"] * len(data)
