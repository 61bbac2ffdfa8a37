"""The work in LitServe. It takes JSON and forms only, so even nothing is asked for in JSON."""

from __future__ import annotations

from typing import Any

import litserve  # type: ignore[import-not-found, unused-ignore]

from benchmarks.peers.apps.lit import serve
from benchmarks.peers.apps.task import task_of_process

TASK = task_of_process()


class Api(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    """One request at a time."""

    def setup(self, _device: str) -> None:
        """Load the model in the worker."""
        self.model = TASK.model()

    # LitServe makes its route of these two signatures, and takes Any for a parameter of the query.
    def decode_request(self, request):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """A request to what the model takes."""
        body = request["request"].file.read() if TASK.kind == "resnet" else request
        return self.model.parse(body)

    def predict(self, item: Any) -> Any:
        """The answer to one."""
        return self.model.answers([item])[0]

    def encode_response(self, output):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        """It is ready for JSON."""
        return output


class BatchedApi(Api):
    """Requests by the batch."""

    def batch(self, inputs: list[Any]) -> list[Any]:
        """The batch is a list."""
        return list(inputs)

    def predict(self, items: list[Any]) -> list[Any]:
        """An answer for each."""
        return self.model.answers(items)

    def unbatch(self, output: list[Any]) -> list[Any]:
        """It is one answer per request already."""
        return output


if __name__ == "__main__":
    batched = TASK.batch > 1
    serve(BatchedApi(max_batch_size=TASK.batch, batch_timeout=TASK.delay) if batched else Api(), TASK.port)
