"""Describes itself with the body of the last request, at first with an object."""

_STATE = {"answer": {"version": 3, "labels": ["a", "b"], "nested": {"x": None}}}


def handle(data, context):
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        if _STATE["answer"] == "raise":
            raise ValueError("no description")
        if _STATE["answer"] == "headers":
            context.set_response_header(0, "X-Described", "yes")
            return [{"headers": "set"}]
        return [_STATE["answer"]]
    _STATE["answer"] = data[0]["body"]
    return ["noted"]
