"""A class that cannot handle anything."""


class NoHandle:
    def initialize(self, context):
        pass
