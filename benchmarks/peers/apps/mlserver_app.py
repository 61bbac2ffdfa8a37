"""The work in MLServer: a runtime of its own, asked by the Open Inference Protocol, batched by MLServer."""

from __future__ import annotations

import base64
import json
from typing import Any

from mlserver import MLModel  # type: ignore[import-not-found, unused-ignore]
from mlserver.types import (  # type: ignore[import-not-found, unused-ignore]
    InferenceResponse,
    ResponseOutput,
)

from benchmarks.peers.apps.task import told

TASK = told()


class Runtime(MLModel):  # type: ignore[misc, unused-ignore]
    """Rows along the first dimension, as MLServer joins them."""

    async def load(self) -> bool:
        """Load the model in the worker."""
        self.model = TASK.model()
        return True

    async def predict(self, payload: Any) -> Any:
        """All rows of a batch at once; each row's answer as JSON text."""
        tensor = payload.inputs[0]
        count = tensor.shape[0]
        data = getattr(tensor.data, "root", tensor.data)
        told_ = [
            json.dumps(answer) for answer in self.model.answers(list(map(self._parsed, rows(data, count))))
        ]
        output = ResponseOutput(name="y", shape=[count, 1], datatype="BYTES", data=told_)
        return InferenceResponse(model_name=self.name, outputs=[output])

    def _parsed(self, row: Any) -> Any:
        if TASK.kind == "mlp":
            return [row]
        return self.model.parse(base64.b64decode(row)) if TASK.kind == "resnet" else row


def rows(data: list[Any], count: int) -> list[Any]:
    """The rows of a tensor, which may come flat."""
    if len(data) == count:
        return list(data)
    width = len(data) // count
    return [data[start * width : (start + 1) * width] for start in range(count)]
