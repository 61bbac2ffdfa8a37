import asyncio
import json
from types import SimpleNamespace

import pytest
from tests.models import doubles

from modelserver.errors import Conflict, InvalidModel, StartFailed
from modelserver.ext.snapshots.document import parse_snapshot, registry_document
from modelserver.ext.workflows.archive import ArchiveContents
from modelserver.ext.workflows.errors import InvalidWorkflow, WorkflowFailed, WorkflowNotFound
from modelserver.ext.workflows.specification import parse_specification
from modelserver.ext.workflows.workflows import Workflows
from modelserver.models.options.resolve import Registration
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import Settings
from modelserver.models.version import SavedWorkflow

WAR = SavedWorkflow("w.war")
TEXT = "models:\n  m: {url: m.mar, min-workers: 1, batch-size: 2}\ndag:\n  f: [m]\n"


class Reader:
    def __init__(self, folder):
        self._folder = folder
        self.removed: list[str] = []

    async def open(self, url):
        if url == "absent.war":
            raise WorkflowNotFound(f"Workflow not found in workflow store: {url}")
        contents = ArchiveContents(
            "w", "functions.py", parse_specification(TEXT, "flow.yaml", "def f(): ...")
        )
        archive = doubles.Archive("functions.mar")
        return SimpleNamespace(
            url=url,
            folder=self._folder,
            contents=contents,
            downloaded=None,
            remove=lambda: self.removed.append(url),
            archive=archive,
        )


class Prepared(doubles.VersionBuilder):
    """Pools whose workers have loaded, but for those of the model that is ``failing``."""

    failing = ""

    async def build(self, name, *arguments, **named):
        model = await super().build(name, *arguments, **named)
        if name == self.failing:
            model.pool.loaded.set_exception(StartFailed("it does not load"))
        else:
            model.pool.loaded.set_result(None)
        return model


class Known:
    def __init__(self, folder):
        self.builder = Prepared()
        self.registry = Registry(self.builder)
        self.workflows = Workflows(SimpleNamespace(registry=self.registry, settings=Settings()), folder)
        self.reader = Reader(folder)
        self.workflows._reader = self.reader


@pytest.fixture
async def known(tmp_path, monkeypatch):
    # A double of an archive is no dataclass.
    monkeypatch.setattr("modelserver.ext.workflows.workflows.replace", lambda archive, **_: archive)
    return Known(tmp_path)


async def test_nodes_become_models(known, tmp_path):
    """A model's archive is its own, a function's the workflow's; snapshots keep the workflow instead."""
    request = SavedWorkflow("w.war", 5, 6, downloaded=True)
    workflow = await known.workflows.register(request)
    function, model = sorted(
        (built.registration for built in known.builder.built), key=lambda each: str(each.model_name)
    )

    assert model == Registration(
        url="m.mar",
        model_name="w__m",
        min_workers=1,
        max_workers=1,
        batch_size=2,
        max_batch_delay=50,
        response_timeout=5,
        startup_timeout=6,
        workflow="w",
    )
    assert (function.url, function.handler, function.trusted) == (str(tmp_path), "functions.py:f", True)
    assert (function.batch_size, function.max_batch_delay) == (None, None)
    assert known.registry.get("w__f").url == "w.war"
    assert known.workflows.get("w") is workflow
    document = registry_document(known.registry)
    saved = {"url": "w.war", "responseTimeout": 5, "startupTimeout": 6, "downloaded": True}
    assert (document["models"], document["workflows"]) == ({}, {"w": saved})
    assert parse_snapshot(json.dumps(document)).workflows == {"w": request}


async def test_unregistering_takes_everything_away(known):
    await known.workflows.register(WAR, "other")
    await known.registry.unregister("other__m", None)
    await known.workflows.unregister("other")

    assert (known.registry.names(), known.workflows.urls(), known.reader.removed) == ([], {}, ["w.war"])
    with pytest.raises(WorkflowNotFound, match="Workflow not found: other"):
        await known.workflows.unregister("other")


async def test_failed_registration_leaves_nothing(known):
    known.builder.refusal = InvalidModel("no handler")
    with pytest.raises(WorkflowFailed, match="Workflow w has failed to register") as failure:
        await known.workflows.register(WAR)
    assert "Workflow Node w__f failed to register. Details: no handler" in failure.value.message
    assert (known.registry.names(), known.workflows.urls(), known.reader.removed) == ([], {}, ["w.war"])

    known.builder.refusal = None
    await known.workflows.register(WAR)


@pytest.mark.parametrize("failing", ["m", "f"])
async def test_node_that_does_not_load_takes_the_others_along(known, failing):
    known.builder.failing = f"w__{failing}"
    with pytest.raises(WorkflowFailed, match="it does not load"):
        await known.workflows.register(WAR)

    assert (known.registry.names(), known.workflows.urls(), known.reader.removed) == ([], {}, ["w.war"])
    assert len(known.builder.dismantled) == 2


async def test_taken_name_is_refused(known):
    known.builder.gate.clear()
    first = asyncio.ensure_future(known.workflows.register(WAR))
    await asyncio.sleep(0)
    with pytest.raises(Conflict, match="Workflow w is already registered"):
        await known.workflows.register(WAR)
    known.builder.gate.set()
    await first
    with pytest.raises(Conflict, match="Workflow w is already registered"):
        await known.workflows.register(WAR)
    await known.registry.register(Registration(url="other__m.mar"))
    with pytest.raises(Conflict, match="needs the name other__m, which a model already has"):
        await known.workflows.register(WAR, "other")
    for odd in ("a/b", ".", "..", "a\n"):
        with pytest.raises(InvalidWorkflow, match=r"The workflow name .* cannot be part of a path"):
            await known.workflows.register(WAR, odd)
    assert len(known.reader.removed) == 7


async def test_what_cannot_be_restored_says_so(known):
    """It is listed and kept in snapshots, asking it is 503, and it can be unregistered."""
    known.registry.workflows.update({"w": WAR, "gone": SavedWorkflow("absent.war", 7)})
    notices = []
    assert not await known.workflows.restore(notices.append)

    assert notices == ["Workflow gone cannot be restored: Workflow not found in workflow store: absent.war"]
    assert known.workflows.get("w").url == "w.war"
    errors = []
    exchange = SimpleNamespace(
        target=SimpleNamespace(route=SimpleNamespace(model="gone")), fail=errors.append
    )
    known.workflows.serve(exchange)
    assert (errors[0].status, known.workflows.urls()) == (503, {"w": "w.war", "gone": "absent.war"})
    await known.workflows.unregister("gone")
    assert known.workflows.urls() == {"w": "w.war"}
