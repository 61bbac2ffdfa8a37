"""Answers how each value looks to the handler."""


def handle(data, context):
    if data is None:
        return None
    return [{"saw": repr(value)} for value in data]
