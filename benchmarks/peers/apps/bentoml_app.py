"""The work in BentoML. Its batching is adaptive and has no window; batched methods take and give lists."""

import bentoml  # type: ignore[import-not-found, unused-ignore]
from PIL.Image import Image

from benchmarks.peers.apps.task import told

TASK = told()
# max_latency_ms is a bound for the whole request, over which it answers 503: it gets room.
BATCHING = (
    {"batchable": True, "max_batch_size": TASK.batch, "max_latency_ms": 60_000} if TASK.batch > 1 else {}
)
SERVICE = bentoml.service(
    workers=1,
    traffic={"timeout": 300, "concurrency": TASK.queue},
    logging={"access": {"enabled": False}},
)


class Noop:
    """Nothing, for lists of text."""

    def __init__(self) -> None:
        self.model = TASK.model()

    @bentoml.api(**BATCHING)  # type: ignore[untyped-decorator, unused-ignore]
    def predict(self, x: list[str]) -> list[dict]:  # type: ignore[type-arg]
        """One answer for each."""
        return self.model.answers(x)


class Mlp:
    """The MLP, for lists of rows."""

    def __init__(self) -> None:
        self.model = TASK.model()

    @bentoml.api(**BATCHING)  # type: ignore[untyped-decorator, unused-ignore]
    def predict(self, instances: list[list[float]]) -> list[dict]:  # type: ignore[type-arg]
        """One answer for each."""
        predictions: list[dict] = self.model.answers([instances])[0]["predictions"]  # type: ignore[type-arg]
        return predictions


class Pictures:
    """The ResNet, for lists of pictures that BentoML opens."""

    def __init__(self) -> None:
        self.model = TASK.model()

    @bentoml.api(**BATCHING)  # type: ignore[untyped-decorator, unused-ignore]
    def predict(self, images: list[Image]) -> list[dict]:  # type: ignore[type-arg]
        """One answer for each."""
        return self.model.answers([self.model.transformed(image) for image in images])  # type: ignore[attr-defined]


Service = SERVICE({"noop": Noop, "mlp": Mlp, "resnet": Pictures}[TASK.kind])
