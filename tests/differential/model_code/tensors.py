"""Adds up the numbers of each tensor that the kservev2 envelope hands over."""


def handle(data, context):
    return None if data is None else [float(total(value["data"])) for value in data]


def total(value):
    return (
        sum(map(total, value)) if isinstance(value, list) else len(value) if isinstance(value, str) else value
    )
