"""One class whose ``handle`` is an attribute, beside imported ones."""

from collections import OrderedDict  # noqa: F401 - not a class of this module


class One:
    def __init__(self):
        self.handle = self.answer
        self.initialized = False

    def initialize(self, context):
        self.initialized = True

    def answer(self, data, context):
        return [f"answered, {self.initialized}"] * len(data)
