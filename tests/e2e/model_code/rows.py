"""Doubles numbers and echoes the rest, one row after the other; a row may say ``wait`` seconds first."""

import time


def handle(data, context):
    if data is None:
        return None
    return [answer(row.get("body", row)) for row in data]


def answer(row):
    if isinstance(row, dict):
        time.sleep(row.get("wait", 0))
        if "raise" in row:
            raise ValueError(row["raise"])
        return row.get("value")
    return row * 2 if isinstance(row, (int, float)) else row
