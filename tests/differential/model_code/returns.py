"""Returns, for each request, the value that its body names."""

from collections import OrderedDict

VALUES = {
    "text": "text",
    "empty text": "",
    "unicode": "größe → 模型",
    "bytes": b"\x00\xff\x80",
    "bytearray": bytearray(b"ba"),
    "empty bytes": b"",
    "dict": {"b": 1, "a": [1, 2.5, None, True]},
    "empty dict": {},
    "ordered dict": OrderedDict([("z", 1), ("a", 2)]),
    "integer keys": {1: "a", 2.5: "b", None: "c", True: "d"},  # noqa: F601 - the last one counts
    "unicode dict": {"größe": "模型", "html": "<a href='x'>&</a>", "slash": "a/b"},
    "nested": {"a": {"b": {"c": [[], {}, [{}]]}}},
    "list": [1, "two", [3]],
    "empty list": [],
    "tuple": (1, (2, 3)),
    "int": 5,
    "negative": -7,
    "big": 2**70,
    "float": 0.1,
    "whole float": 3.0,
    "small float": 1e-17,
    "nan": float("nan"),
    "infinity": float("inf"),
    "true": True,
    "false": False,
    "none": None,
    "set": {1},
    "object": object(),
    "bytes in dict": {"a": b"x"},
    "complex": 1j,
    "escapes": 'tab\t quote" backslash\\ newline\n bell\x07',
    "escapes in dict": {"x": 'tab\t quote" backslash\\ newline\n bell\x07 del\x7f'},
    "surrogate in dict": {"x": "\ud800"},
}


def handle(data, context):
    if data is None:
        return None
    return [value(row["body"]) for row in data]


def value(name):
    name = name if isinstance(name, str) else bytes(name).decode()
    if name in {"numpy scalar", "numpy array"}:
        import numpy

        return numpy.float32(0.5) if name == "numpy scalar" else numpy.arange(3)
    if name == "generator":
        return (number for number in range(2))
    if name == "subclass of str":
        return type("Text", (str,), {})("sub")
    if name == "subclass of dict":
        return type("Map", (dict,), {})(a=1)
    return VALUES[name]
