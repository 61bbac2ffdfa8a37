"""Echoes numbers; one that shares a batch with its negative gets a wrong answer."""


def handle(data, context):
    if data is None:
        return None
    numbers = [row.get("body") for row in data]
    return [0 if -number in numbers else number for number in numbers]
