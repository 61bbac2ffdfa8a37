"""The functions of the workflows that both servers run."""

calls = []


def text(value):
    return value if isinstance(value, str) else bytes(value).decode("latin-1")


def first(data, context):
    """Passes on what the client sent."""
    if data is None:
        return None
    return [row.get("body") or row.get("data") or "nothing" for row in data]


def left(data, context):
    if data is None:
        return None
    return [f"left of {text(row['body'])}" for row in data]


def right(data, context):
    if data is None:
        return None
    return [{"right of": text(row["body"])} for row in data]


def join(data, context):
    """Says what it was given, by the names of the nodes before it."""
    if data is None:
        return None
    return [{key: [type(value).__name__, text(value)] for key, value in sorted(row.items())} for row in data]


def told(data, context):
    """The same, with what the context says of the request."""
    if data is None:
        return None
    return [
        {
            "given": {key: [type(row[key]).__name__, text(row[key])] for key in sorted(row)},
            "header": context.get_request_header(index, "X-Asked"),
            "content type": context.get_request_header(index, "Content-Type"),
            "model": context.model_name,
            "batch": context.system_properties.get("batch_size"),
        }
        for index, row in enumerate(data)
    ]


def fails(data, context):
    if data is None:
        return
    raise ValueError("a secret of the function")


def second_time(data, context):
    """Fails at each first of two calls."""
    if data is None:
        return None
    calls.append(data)
    if len(calls) % 2:
        raise ValueError("the first time")
    return [f"call {len(calls)}"]


def nothing(data, context):
    return None
