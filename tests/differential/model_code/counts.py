"""Answers each request with the size of its batch and what it sent."""

import time


def handle(data, context):
    if data is None:
        return None
    bodies = [row.get("data", row.get("body")) for row in data]
    if any(body == "raise" for body in bodies):
        raise ValueError("one of them said so")
    if any(body == "sleep" for body in bodies):
        time.sleep(30)
    if any(body == "short" for body in bodies):
        return bodies[1:]
    if any(body == "innocent" for body in bodies):
        return ["served"] * len(data)
    return [{"rows": len(data), "sent": body} for body in bodies]
