"""Answers each row with the model's name, the row as text, and a name of the call that it was in."""

import uuid


def handle(data, context):
    if data is None:
        return None
    call = uuid.uuid4().hex
    return [f"{context.model_name}|{text_of(row)}|{call}" for row in data]


def text_of(row):
    """A row by any protocol: bytes or text as text, numbers with commas between them."""
    value = row.get("data", row.get("body", row))
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "backslashreplace")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        value = ",".join(str(each) for each in value)
    return str(value).encode("ascii", "backslashreplace").decode()
