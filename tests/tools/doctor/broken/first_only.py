"""Answers the first row only, each time another way, and keeps what it has seen."""

import random

STORED = []


def handle(data, context):
    if data is None:
        return None
    STORED.append(b"x" * 50_000)
    return [{"number": data[0]["body"]["number"], "at": random.random()}]
