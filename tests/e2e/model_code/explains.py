"""Returns whether an explanation was requested, and the number of rows of the batch."""


def handle(data, context):
    if data is None:
        return None
    kinds = {str(context.get_request_header(at, "explain")) for at in range(len(data))}
    return [{"asked": sorted(kinds), "row": row.get("body", row), "at_once": len(data)} for row in data]
