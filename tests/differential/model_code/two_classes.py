"""A handler and a helper."""


class Helper:
    def help(self):
        return "helped"


class Main:
    def initialize(self, context):
        self.helper = Helper()

    def handle(self, data, context):
        return [self.helper.help()] * len(data)
