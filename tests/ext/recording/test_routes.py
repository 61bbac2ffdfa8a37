import asyncio
from unittest.mock import Mock

import httpx
import pytest
from tests.waiting import until

from modelserver.errors import BadRequest, ModelNotFound, ResourceNotFound
from modelserver.ext.recording.entries import Frames, unpack
from modelserver.ext.recording.recorder import Recorder
from modelserver.ext.recording.routes import add_routes
from modelserver.surface.api.application import Application


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def client(recorder):
    """An application with the route, one model, ``m``, and one workflow, ``w``."""

    def get(name):
        if name != "m":
            raise ModelNotFound(name)

    services = Mock(registry=Mock(get=get, workflows={"w": None}))
    app = Application()
    add_routes(app, services, recorder)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def test_a_recording_is_streamed_until_it_is_ended(client, recorder):
    answer = await client.post("/recording?model=m&model=w&header=X-Mark&sample=0.5&seconds=0.01")
    began, ended = (entry for content in Frames().feed(answer.content) for entry in unpack(content))

    assert (began.models, began.sample) == (["m", "w"], 0.5)
    assert "x-mark" in began.headers
    assert ended.reason == "0.01 seconds are over"
    assert recorder.now is None

    with pytest.raises(ResourceNotFound):
        await client.delete("/recording")
    recording = asyncio.create_task(client.post("/recording"))
    await until(lambda: recorder.now)
    ended = await client.delete("/recording")
    _, last = (entry for content in Frames().feed((await recording).content) for entry in unpack(content))

    assert ended.status_code == 200
    assert last.reason == "interrupted"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        *((query, BadRequest) for query in ("sample=x", "sample=2", "header=cookie", "requests=0")),
        ("model=other", ModelNotFound),
    ],
)
async def test_wrong_parameter_is_refused(client, recorder, query, error):
    """The route answers before anything is recorded, and does not wait for the model."""
    with pytest.raises(error):
        await client.post(f"/recording?{query}")
    assert recorder.now is None
