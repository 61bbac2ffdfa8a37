"""An application of FastAPI's."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import BackgroundTasks, FastAPI, Request, Response, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import BaseModel


@asynccontextmanager
async def lifespan(app):
    yield {"name": "shop"}
    print("the shop has closed", flush=True)


app = FastAPI(lifespan=lifespan)
events = []


class Item(BaseModel):
    name: str
    price: float = 1.0


@app.get("/items/{key}")
def show(key: int, request: Request, q: str = ""):
    url = request.url_for("show", key=3)
    return {"key": key, "q": q, "state": request.state.name, "path": url.path}


@app.put("/items/{key}", status_code=201)
async def put(key: int, item: Item, response: Response):
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    return {"key": key, "price": item.price}


@app.post("/upload")
async def upload(file: UploadFile, tasks: BackgroundTasks):
    tasks.add_task(events.append, f"stored {file.filename}")
    return len(await file.read())


@app.get("/events")
def past():
    return events


@app.get("/ticks")
async def ticks(count: int, door: str = ""):
    async def generate():
        try:
            for tick in range(count):
                await asyncio.sleep(0.01)
                while tick and door and not Path(door).exists():  # noqa: ASYNC110, ASYNC240 - a test's door
                    await asyncio.sleep(0.01)
                yield f"data: {tick}\n\n"
        finally:
            events.append("ticks have ended")

    return StreamingResponse(generate(), media_type="text/event-stream")


@app.get("/large")
async def large(size: int):
    return StreamingResponse(b"x" * 50_000 for _ in range(size // 50_000))


@app.delete("/items/{key}")
def fail(key: int):
    raise ValueError(f"{key} cannot be deleted")


@app.get("/broken")
async def broken():
    def generate():
        yield b"begun"
        raise ValueError("no more")

    return StreamingResponse(generate())
