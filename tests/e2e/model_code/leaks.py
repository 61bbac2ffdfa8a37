"""Keeps a megabyte of each request, and answers with its own process id."""

import os

held = []


def handle(data, context):
    if data is None:
        return None
    held.extend(os.urandom(1) * (1 << 20) for _ in data)
    return [str(os.getpid()) for _ in data]
