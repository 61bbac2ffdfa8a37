from types import SimpleNamespace

import pytest

from modelserver.errors import ModelNotFound
from modelserver.ext.repository.model_repository import ModelRepository, file_of
from modelserver.models.archives.store import ModelStore


@pytest.mark.parametrize(("tells", "end"), [(False, "."), (True, ". There is none")])
async def test_what_the_store_does_not_have(tells, end):
    """The error is KServe's, and lists the models of the store if clients may know."""
    settings = SimpleNamespace(model_store=None, default_workers_per_model=0, tells_names=tells)
    registry = SimpleNamespace(names=list, builder=SimpleNamespace(store=ModelStore(None)))

    with pytest.raises(ModelNotFound) as caught:
        await ModelRepository(registry, settings).load("m")
    assert caught.value.kserve_message == f"Model with name m does not exist{end}"


def test_file_of_a_url_is_its_last_segment():
    urls = ("a.mar", "/store/a.mar/", "https://host/path/a.mar?version=1", "file:///store/a.mar")
    assert {file_of(url) for url in urls} == {"a.mar"}
