import io
import json
import wave

import numpy
from tests.handlers.parts import Stream

from modelserver_handlers.context import BatchState, Context


def wav(samples, width=2, channels=1, rate=10):
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(numpy.array(samples).astype(f"<i{width}").tobytes())
    return made.getvalue()


class Bench:
    """A handler whose model is in ``folder``; ``warnings`` are what registrations show."""

    def __init__(self, kind, folder, **settings):
        self.handler = kind()
        config = {"handler": {"model_path": str(folder), **settings}}
        self.context = Context("m", str(folder), None, 8, None, "0", model_yaml_config=config)
        self.context._ms_begin(BatchState())
        self.warnings = self.context._ms_warnings

    def load(self):
        self.handler.initialize(self.context)
        return self

    def send(self, *rows, endpoint=""):
        """The answers to a batch, and for rejected rows what is wrong."""
        properties = [{"url_path": endpoint} if endpoint else {} for _ in rows]
        self.context._ms_begin(BatchState([str(idx) for idx in range(len(rows))], properties=properties))
        answers = self.handler.handle([{"body": row} for row in rows], self.context)
        rejected = self.context._ms_rejections
        return [rejected[idx][1] if idx in rejected else answer for idx, answer in enumerate(answers)]

    async def request(self, endpoint="", body=None, **fields):
        """The answer of a handler that gets one request at a time: its document, or its events."""
        await self.handler.initialize(self.context)
        state = BatchState(["r"], properties=[{"url_path": endpoint} if endpoint else {}])
        stream = state.stream = Stream()
        body = json.dumps({"model": "m", **fields}).encode() if body is None else body
        (answer,) = await self.handler.handle([{"body": body}], self.context._ms_of_request(state))
        if not isinstance(answer, bytes):
            return answer
        return stream.events(answer) if fields.get("stream") else json.loads(answer)
