import sys
from types import ModuleType

import pytest

from modelserver_handlers.compat.batch_streamer import TextIteratorStreamerBatch


def test_texts_are_streamed_until_the_last_has_ended(monkeypatch):
    class Streamer:
        def __init__(self, tokenizer, skip_prompt, timeout, **options):
            self.texts = []
            assert (tokenizer, skip_prompt, timeout, options) == ("tokenizer", True, None, {"skip": 1})

        def put(self, value):
            self.texts += [text for text in value if text]

        def end(self):
            self.texts.append(None)

        def __iter__(self):
            return self

        def __next__(self):
            text = self.texts.pop(0)  # fails if it is read after its end
            if text is None:
                raise StopIteration
            return text

    class Row(list[str]):
        @property
        def shape(self):
            return (len(self),)

    streamers = ModuleType("transformers.generation.streamers")
    streamers.TextIteratorStreamer = Streamer
    for name in ("transformers", "transformers.generation"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, streamers.__name__, streamers)
    streamer = TextIteratorStreamerBatch("tokenizer", 2, skip_prompt=True, skip=1)
    for row in (Row(["a", "x"]), Row(["b", ""])):
        streamer.put(row)
    streamer.end()

    assert list(streamer) == [[{"text": "a"}, {"text": "x"}], [{"text": "b"}, {"text": ""}]]
    with pytest.raises(ValueError, match="batch size is set to 2"):
        streamer.put(Row(["a"]))
