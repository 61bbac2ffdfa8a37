"""Returns what its body names in place of a list of answers."""


class Whole:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return {
            "list": lambda: ["fine"],
            "subclass of list": lambda: type("Answers", (list,), {})(["fine"]),
            "tuple": lambda: ("fine",),
            "dict": lambda: {"fine": 1},
            "text": lambda: "fine",
            "bytes": lambda: b"fine",
            "none": lambda: None,
            "number": lambda: 1,
            "generator": lambda: (x for x in ["fine"]),
            "empty list": list,
            "two": lambda: ["one", "two"],
        }[data[0]["body"]]()
