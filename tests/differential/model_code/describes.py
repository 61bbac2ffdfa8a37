"""Describes itself, when asked, with what it was last sent; starts with an object."""

_SAID = {"answer": {"version": 3, "labels": ["a", "b"], "nested": {"x": None}}}


def handle(data, context):
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        if _SAID["answer"] == "raise":
            raise ValueError("no description")
        if _SAID["answer"] == "headers":
            context.set_response_header(0, "X-Described", "yes")
            return [{"headers": "set"}]
        return [_SAID["answer"]]
    _SAID["answer"] = data[0]["body"]
    return ["noted"]
