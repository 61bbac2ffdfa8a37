"""Echoes numbers; one that shares a batch with its negative gets a wrong answer."""


def handle(data, context):
    if data is None:
        return None
    numbers = [int(row.get("body") or row["data"]) for row in data]
    return [0 if -number in numbers else number for number in numbers]
