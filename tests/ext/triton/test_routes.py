import logging

import httpx
import pytest
from tests.ext.triton.test_regions import services_with

from modelserver.errors import BadRequest, MethodNotAllowed, ModelNotFound
from modelserver.ext.triton.routes import add_routes
from modelserver.surface.api.application import Application


class NoModels:
    def get(self, name, version=None):
        raise ModelNotFound.named(name)

    def versions(self, name=None):
        if name is not None:
            raise ModelNotFound.named(name)
        return []


def client(host="127.0.0.1"):
    """Of a server without models, which allows shared memory; errors are raised."""
    app = Application()
    services = services_with("/")
    services.registry = NoModels()
    add_routes(app, services)
    transport = httpx.ASGITransport(app=app, client=(host, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://server")


async def test_shared_memory_is_registered_and_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr("modelserver.ext.triton.regions.SHARED_MEMORY", tmp_path)
    (tmp_path / "k").write_bytes(bytes(64))
    base = "/v2/systemsharedmemory"
    async with client() as request:
        for name in ("a", "b", "c"):
            body = {"key": "/k", "byte_size": 32, "offset": 32}
            assert (await request.post(f"{base}/region/{name}/register", json=body)).json() == {}
        assert [each["name"] for each in (await request.get(f"{base}/status")).json()] == ["a", "b", "c"]
        await request.post(f"{base}/region/a/unregister")
        (result,) = (await request.get(f"{base}/region/b/status")).json()
        assert result == {"name": "b", "key": "/k", "offset": 32, "byte_size": 32}
        await request.post(f"{base}/unregister")
        assert (await request.get(f"{base}/status")).json() == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "key: the name"),
        ({"key": 1, "byte_size": 8}, "key: the name"),
        ({"key": "/k"}, "numbers of bytes"),
        ({"key": "/k", "byte_size": True}, "numbers of bytes"),
        ({"key": "/k", "byte_size": 8, "offset": None}, "numbers of bytes"),
        ({"key": "/k", "byte_size": 2**64, "offset": 2**64}, "exceed"),
        ({"key": "/../k", "byte_size": 8}, "not the name of shared memory"),
    ],
)
async def test_bad_registration_is_refused(tmp_path, monkeypatch, body, reason):
    monkeypatch.setattr("modelserver.ext.triton.regions.SHARED_MEMORY", tmp_path)
    (tmp_path / "k").write_bytes(bytes(64))
    async with client() as request:
        with pytest.raises(BadRequest, match=reason):
            await request.post("/v2/systemsharedmemory/region/r/register", json=body)


async def test_cuda_memory_is_refused():
    base = "/v2/cudasharedmemory"
    async with client() as request:
        assert (await request.get(f"{base}/status")).json() == []
        assert (await request.get(f"{base}/region/r/status")).json() == []
        assert (await request.post(f"{base}/unregister")).json() == {}
        with pytest.raises(BadRequest, match="CUDA shared memory is not supported"):
            await request.post(f"{base}/region/r/register", json={"raw_handle": {"b64": "x"}})


async def test_only_clients_on_this_machine_change_the_log(monkeypatch):
    # It is put back afterwards.
    monkeypatch.setattr(logging.getLogger("modelserver"), "level", logging.INFO)
    async with client("10.0.0.1") as request:
        assert (await request.get("/v2/logging")).status_code == 200
        with pytest.raises(MethodNotAllowed, match="PUT /logging"):
            await request.post("/v2/logging", json={"log_verbose_level": 1})
    async with client() as request:
        assert (await request.post("/v2/logging", json={})).json()["log_error"] is True


@pytest.mark.parametrize(
    "path", ["config", "stats", "versions/1/config", "versions/1/stats", "trace/setting"]
)
async def test_missing_model_is_refused(path):
    async with client() as request:
        assert (await request.get("/v2/models/stats")).json() == {"model_stats": []}
        assert (await request.get("/v2/trace/setting")).json() == {"trace_level": ["OFF"]}
        with pytest.raises(ModelNotFound):
            await request.get(f"/v2/models/gone/{path}")
