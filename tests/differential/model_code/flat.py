"""Returns the type and the text of each value of an envelope; fails on request."""


def handle(data, context):
    if data is None:
        return None
    if "raise" in data:
        raise ValueError("told to")
    if "short" in data:
        return data[1:]
    return [[type(value).__name__, readable(value)] for value in data]


def readable(value):
    if isinstance(value, dict):
        return {key: readable(inner) for key, inner in value.items()}
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray)) else value
