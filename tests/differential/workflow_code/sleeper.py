"""Sleeps as many seconds as its body says."""

import time


def handle(data, context):
    if data is None:
        return None
    for row in data:
        body = row["body"]
        time.sleep(float(body if isinstance(body, str) else bytes(body).decode()))
    return [f"slept with {len(data)}"] * len(data)
