"""Answers in as many parts as the field ``parts`` says, then "last"; without it in one: its fields' names.

``endless`` names a file that notes that nobody waits any more.
"""

import time
from pathlib import Path

from modelserver_handlers.streaming import send_intermediate_predict_response

PATIENCE = 20.0


def handle(data, context):
    if data is None:
        return None
    row = data[0]
    if "endless" in row:
        endless(row["endless"].decode(), context)
    for step in range(int(row.get("parts", b"0"))):
        send_intermediate_predict_response([f"part {step}"], context.request_ids, "part", 200, context)
    if "fail" in row:
        raise ValueError("told to fail")
    return ["last" if "parts" in row else ",".join(sorted(row))]


def endless(notes, context):
    until = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            send_intermediate_predict_response(["again"], context.request_ids, "part", 200, context)
            time.sleep(0.005)
    finally:
        if time.monotonic() < until:
            Path(notes).touch()
