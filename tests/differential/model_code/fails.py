"""Fails as its body says; of several requests in a batch each says how it would."""

import os
import sys

from ts.utils.util import PredictionException

ERRORS = {
    "value": lambda: ValueError("a secret of the handler"),
    "key": lambda: KeyError("x"),
    "runtime": lambda: RuntimeError("no"),
    "assertion": lambda: AssertionError("no"),
    "not implemented": NotImplementedError,
    "os": lambda: OSError(2, "No such file or directory"),
    "stop iteration": StopIteration,
    "unicode": lambda: ValueError("größe"),
    "memory": MemoryError,
    "cuda": lambda: RuntimeError("CUDA out of memory"),
    "cuda word": lambda: ValueError("not about CUDA at all"),
    "out of resources": lambda: RuntimeError("out of memory"),
    "default code": lambda: PredictionException("no code"),
    "empty message": lambda: PredictionException("", 418),
    "unicode message": lambda: PredictionException('größe "quoted" \\ \n', 422),
}


class Fails:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        answers = []
        for row in data:
            what = row["body"]
            if what == "exit":
                sys.exit(3)
            if what == "os exit":
                os._exit(3)
            if what.startswith("code "):
                raise PredictionException(f"told {what}", int(what.removeprefix("code ")))
            if what in ERRORS:
                raise ERRORS[what]()
            answers.append(f"{what} was fine")
        return answers
