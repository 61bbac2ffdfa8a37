"""A class without ``initialize``."""


class NoInitialize:
    def handle(self, data, context):
        return ["went without"] * len(data)
