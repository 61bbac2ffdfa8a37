"""The work in Ray Serve: a local Ray without dashboard, one replica, its own batching."""

from __future__ import annotations

from typing import Any

from ray import serve  # type: ignore[import-not-found, unused-ignore]

from benchmarks.peers.apps.rays import serve_until_a_signal
from benchmarks.peers.apps.task import VARIABLE, task_of_process

TASK = task_of_process()


# What a replica may use becomes the number of its threads.
@serve.deployment(  # type: ignore[untyped-decorator, unused-ignore]
    num_replicas=1,
    max_ongoing_requests=TASK.queue,
    ray_actor_options={"num_cpus": TASK.threads if TASK.kind == "resnet" else 1},
)
class Served:
    """The model behind its batching."""

    def __init__(self) -> None:
        self.model = TASK.model()

    @serve.batch(max_batch_size=TASK.batch, batch_wait_timeout_s=TASK.delay)  # type: ignore[untyped-decorator, unused-ignore]
    async def together(self, bodies: list[bytes]) -> list[Any]:
        """One answer for each body."""
        return self.model.answers([self.model.parse(body) for body in bodies])

    async def __call__(self, request: Any) -> Any:
        """One request, alone or among others."""
        body = await request.body()
        if TASK.batch > 1:
            return await self.together(body)
        return self.model.answers([self.model.parse(body)])[0]


if __name__ == "__main__":
    application = Served.bind()  # type: ignore[attr-defined, unused-ignore]
    serve_until_a_signal(application, TASK.port, TASK.threads + 1, VARIABLE)
