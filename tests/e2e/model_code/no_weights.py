"""Opens a file that is not in its archive."""


class Handler:
    def initialize(self, context):
        print("about to open the weights")
        with open("weights.bin", "rb") as weights:
            self.weights = weights.read()

    def handle(self, data, context):
        return [len(self.weights)] * len(data)
