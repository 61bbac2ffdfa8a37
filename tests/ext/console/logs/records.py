from modelserver.ext.console.logs.lines import LineQuery


def answered(log, *lines):
    """A record of the access log with these lines and ids."""
    text = "\n".join(line for line, _ in lines)
    log.access.info("%s", text, extra={"request_ids": [each for _, each in lines]})


def texts(ring, limit=100, **query):
    return [line.text for line in ring.page(LineQuery(**query), limit)]
