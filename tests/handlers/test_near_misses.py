import modelserver
from modelserver_handlers.near_misses import near_misses

NAMES = ("load", "predict", "prepare", "answer")


class Misspelt(modelserver.Handler):
    def laod(self, context):
        pass

    def predcit(self, rows):
        return rows


class Right(modelserver.Handler):
    def load(self, context):
        self.loads("{}")

    def loads(self, text):
        return text

    def predict(self, rows):
        return [self.answers(row) for row in rows]

    def answers(self, row):
        return row

    def predict_all(self, rows):
        return rows

    def _prepares(self):
        pass


def test_methods_that_nothing_calls_and_look_like_others_are_listed():
    assert near_misses(Misspelt, NAMES) == {"laod": "load", "predcit": "predict"}

    assert near_misses(Right, NAMES) == {}
