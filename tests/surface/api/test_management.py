import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from modelserver.errors import ModelNotFound, ModelServerError, StartFailed
from modelserver.models.options.resolve import Registration
from modelserver.surface.api import management
from modelserver.surface.api.application import Application
from modelserver.surface.api.management import ManagementApi, read_registration
from modelserver.surface.api.parameters import Parameters
from modelserver.surface.api.routes import add_management
from modelserver.surface.http.answers import error_body


class Registry:
    """Records the calls; a model has as many workers as were requested."""

    def __init__(self, **models: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.models = models
        self.complete = True
        self.error: ModelServerError | None = None

    def _model(self, name: str, workers: int = 0):
        ready, crew = [SimpleNamespace(gpu=None)] * workers, SimpleNamespace(on_demand=None)
        pool = SimpleNamespace(workers=ready, warnings=[], crew=crew)
        return SimpleNamespace(name=name, version="1.0", url=self.models.get(name, ""), pool=pool)

    async def register(self, registration: Registration):
        self.calls.append(("register", registration))
        return self._model(registration.model_name or "m", registration.initial_workers or 0)

    async def wait_loaded(self, model) -> bool:
        if self.error:
            raise self.error
        return self.complete

    def get(self, name: str, version: str | None = None):
        if name not in self.models:
            raise ModelNotFound.named(name)
        return self._model(name, 1)

    def defaults(self):
        return (self._model(name) for name in self.models)

    async def scale(self, *arguments) -> list[Any]:
        self.calls.append(("scale", *arguments))
        return []

    async def wait_scaled(self, model, started, version: str | None) -> bool:
        return await self.wait_loaded(model)

    async def replace_archive(self, name: str, version: str | None, values: Registration):
        self.calls.append(("replace", name, version, values))
        loading: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.error is None:
            loading.set_result(
                SimpleNamespace(version="2.0", pool=SimpleNamespace(workers=[object()], warnings=[]))
            )
        else:
            loading.set_exception(self.error)
            loading.exception()
        return loading


@pytest.fixture(autouse=True)
def replaced_by_the_double(monkeypatch):
    monkeypatch.setattr(management, "replace_archive", Registry.replace_archive)


def client(registry: Registry, *, model_api: bool = True) -> httpx.AsyncClient:
    app = Application()
    add_management(app, ManagementApi(registry, model_api=model_api))

    async def show(request: Request, error: Exception) -> Response:
        status, body = error_body(cast("ModelServerError", error))
        return Response(body, status)

    app.add_exception_handler(ModelServerError, show)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def ask(
    registry: Registry, method: str, path: str, *, model_api: bool = True, **arguments
) -> tuple[int, Any]:
    async with client(registry, model_api=model_api) as asking:
        answer = await asking.request(method, path, **arguments)
    body = answer.json()
    return answer.status_code, body.get("status") or body.get("message") or body


def test_all_registration_parameters_are_read():
    """Texts, numbers written as text, booleans in any case."""
    texts: dict[str, Any] = {"url": "m.mar", "model_name": "m", "batch_policy": "greedy"}
    numbers: dict[str, Any] = {
        "batch_size": 8,
        "max_batch_delay": 50,
        "initial_workers": 2,
        "response_timeout": 9,
    }
    written = {name: f" {number} " for name, number in numbers.items()}

    registration = read_registration(Parameters({**texts, **written, "synchronous": "False"}))
    assert registration == Registration(**texts, **numbers, synchronous=False)


async def test_registration_whose_workers_are_not_all_there_gets_206():
    """The other ways in which it ends well are in tests/e2e/test_registration.py (reference 5.2)."""
    registry = Registry()
    registry.complete = False

    answer = await ask(registry, "POST", "/models?url=m.mar&initial_workers=2")
    assert answer == (206, "Workers scaling in progress...")


@pytest.mark.parametrize(
    ("query", "bounds"),
    [
        ("", (1, 1)),
        ("?min_worker=3", (3, 3)),
        ("?min_worker=1&max_worker=4", (1, 4)),
        ("?min_worker=nan", (1, 1)),
        ("?min_worker=0", (0, 0)),
        ("?min_worker=0&max_worker=2", (0, 2)),
        ("?min_worker=2&max_worker=x", (2, 2)),
    ],
)
async def test_bounds_of_workers_have_defaults(query, bounds):
    """min_worker is 1 unless given, max_worker is min_worker unless given (reference 5.3)."""
    registry = Registry(m="m.mar")

    assert await ask(registry, "PUT", f"/models/m{query}") == (202, "Processing worker updates...")
    assert registry.calls == [("scale", "m", None, *bounds)]


@pytest.mark.parametrize(
    ("path", "version", "suffix"),
    [
        ("/models/m?", None, ""),
        ("/models/m/2.0?", "2.0", ", version: 2.0"),
        ("/models/m?model_version=3.0&", "3.0", ", version: 3.0"),
        ("/models/m/2.0?model_version=3.0&", "2.0", ", version: 2.0"),
    ],
)
async def test_synchronous_scaling_is_answered_with_the_result(path, version, suffix):
    """The version comes from the path, else from the parameter, and is named only if it was given.

    With fewer workers so far the status is 206.
    """
    registry = Registry(m="m.mar")
    synchronous = f"{path}synchronous=true&min_worker=2"

    assert await ask(registry, "PUT", synchronous) == (200, f"Workers scaled to 2 for model: m{suffix}")
    assert registry.calls == [("scale", "m", version, 2, 2)]
    registry.complete = False
    assert await ask(registry, "PUT", synchronous) == (206, "Workers scaling in progress...")


@pytest.mark.parametrize("path", ["/models/m/1.0", "/models/m?model_version=1.0"])
async def test_scaling_with_a_url_replaces_the_archive(path):
    """A url makes a scaling a replacement, which takes the words of both; nobody waits unless asked to."""
    registry = Registry(m="a.mar")
    values = {"url": "b.mar", "handler": "h.py", "min_worker": "2", "batch_size": "8", "model_version": "1.0"}

    assert await ask(registry, "PUT", path, params=values) == (202, "Processing worker updates...")
    expected = Registration(url="b.mar", handler="h.py", min_workers=2, batch_size=8)
    assert registry.calls == [("replace", "m", "1.0", expected)]
    replaced = 'Model "m" Version: 1.0 replaced by version 2.0 with 1 workers'
    assert await ask(registry, "PUT", path, params={**values, "synchronous": "true"}) == (200, replaced)


async def test_replacing_that_fails():
    registry = Registry(m="a.mar")
    registry.error = StartFailed("why", 507)

    assert (await ask(registry, "PUT", "/models/m", params={"url": "b.mar"}))[0] == 202
    waiting = {"url": "b.mar", "synchronous": "true"}
    assert await ask(registry, "PUT", "/models/m", params=waiting) == (507, "why")
    assert (await ask(registry, "PUT", "/models/m", params={**waiting, "model_name": "n"}))[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/models?url=m.mar", 405),
        ("DELETE", "/models/m", 405),
        ("PUT", "/models/m?url=b.mar", 405),
        ("PUT", "/models/m?min_worker=1", 202),
    ],
)
async def test_without_the_model_api_workers_are_scaled_but_models_stay(method, path, status):
    registry = Registry(m="m.mar")

    assert (await ask(registry, method, path, model_api=False))[0] == status
    assert [call[0] for call in registry.calls] == (["scale"] if status == 202 else [])


@pytest.mark.parametrize(
    ("method", "path", "warnings"),
    [
        ("POST", "/models?url=m.mar&batch_size=abc", ["batch_size='abc' is not a whole number"]),
        ("POST", "/models?url=m.mar&batch_size=0", ["batch_size=0 is not a valid batch size"]),
        ("PUT", "/models/m?min_worker=2&batch_size=0", ["batch_size=0 is not a valid batch size"]),
        (
            "POST",
            "/models?url=m.mar&batchsize=8&initial_worker=1",
            ["mean batch_size?", "mean initial_workers?"],
        ),
        ("PUT", "/models/m?min_workers=2", ["mean min_worker?"]),
        ("PUT", "/models/m?min_worker=2&synchronous=yes", ["'yes' is neither true nor false, false is used"]),
        ("PUT", "/models/m?min_worker=2&number_gpu=1&timeout=9", []),
        ("POST", "/models?url=m.mar&batch_size=-1&max_batch_delay=-1&response_timeout=-1", []),
    ],
)
async def test_parameters_without_use_are_reported(method, path, warnings):
    async with client(Registry(m="m.mar")) as asking:
        answer = await asking.request(method, path)

    assert answer.status_code == (200 if method == "POST" else 202)
    for text, part in zip(answer.json().get("warnings", []), warnings, strict=True):
        assert part in text
