"""Returns what the handler received: keys, types, values and headers."""

NAMES = ("explain", "url_path", "describe", "X-Asked", "Content-Type", "body", "data", "other")


def handle(data, context):
    if data is None:
        return None
    return [row_facts(index, row, context) for index, row in enumerate(data)]


def row_facts(index, row, context):
    return {
        "row": type(row).__name__,
        "keys": list(row),
        "values": {key: [type(value).__name__, readable(value)] for key, value in row.items()},
        "headers": {name: context.get_request_header(index, name) for name in NAMES},
        "rows": len(context.request_ids),
    }


def readable(value):
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray)) else value
