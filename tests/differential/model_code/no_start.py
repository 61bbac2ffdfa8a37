"""Cannot be initialized."""


class NoStart:
    def initialize(self, context):
        raise ValueError("not today")

    def handle(self, data, context):
        return data
