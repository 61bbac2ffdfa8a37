"""Answers ``fine`` to every request."""


def handle(data, context):
    return None if data is None else ["fine"] * len(data)
