"""Many models in Ray Serve: one replica that keeps so many loaded, and parks the least recently used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from ray import serve  # type: ignore[import-not-found, unused-ignore]

from benchmarks.peers import many_model, many_noop
from benchmarks.peers.apps.rays import serve_until_a_signal
from benchmarks.peers.many_model import FITS, FOLDER, PORT


@serve.deployment(num_replicas=1, max_ongoing_requests=1000)  # type: ignore[untyped-decorator, unused-ignore]
class Served:
    """The models by their names, ``<kind>-<number>``; each kind has a folder."""

    @serve.multiplexed(max_num_models_per_replica=int(os.environ[FITS]))  # type: ignore[untyped-decorator, unused-ignore]
    async def model(self, name: str) -> Any:
        """The model, loaded; others are served meanwhile."""
        kind = name.partition("-")[0]
        model: Any = many_noop.Model() if kind == "noop" else many_model.Model()
        await asyncio.to_thread(model.load, Path(os.environ[FOLDER]) / kind)
        return model

    async def __call__(self, _request: Any) -> Any:
        """An answer of the model that a header names."""
        return (await self.model(serve.get_multiplexed_model_id() or "noop")).answer()


if __name__ == "__main__":
    application = Served.bind()  # type: ignore[attr-defined, unused-ignore]
    serve_until_a_signal(application, int(os.environ[PORT]), 3, PORT, FITS, FOLDER)
