"""A minimal FastAPI service, as it is written first: the model is called in the route, nothing is batched."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request, Response

from benchmarks.peers.apps.task import told

app = FastAPI()
TASK = told()
MODEL = TASK.model()


@app.get("/ping")
async def ping() -> dict[str, str]:
    """Whether it runs."""
    return {"status": "Healthy"}


@app.post("/predict")
async def predict(request: Request) -> object:
    """The answer to a raw body; pictures are computed in a thread, for they take long."""
    body = await request.body()
    if TASK.kind == "noop":
        return Response(b'{"ok":1}', media_type="application/json")
    if TASK.kind == "mlp":
        return MODEL.answers([MODEL.parse(body)])[0]
    return await asyncio.get_running_loop().run_in_executor(None, _picture, body)


def _picture(body: bytes) -> object:
    return MODEL.answers([MODEL.parse(body)])[0]
