"""A module with a function, an ``initialize`` that nobody calls, and imported classes."""

from collections import OrderedDict  # noqa: F401 - not a class of this module

from ts.context import Context  # noqa: F401 - likewise

CALLED = []


def initialize(context):
    CALLED.append("initialize")


def handle(data, context):
    CALLED.append("without data" if data is None else "with data")
    return "ignored" if data is None else [CALLED[:2]] * len(data)


def other(data, context):
    return None if data is None else ["the other function"] * len(data)
