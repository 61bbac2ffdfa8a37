"""Triton's extensions over gRPC; what clients see of them is in tests/e2e/test_triton_clients.py."""

from types import SimpleNamespace

import pytest
from google.protobuf.json_format import ParseDict
from tests.ext.triton.doubles import version
from tests.waiting import turns_of

from modelserver.errors import MethodNotAllowed, ModelNotFound
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.open_inference import method_of
from modelserver.ext.triton.rpcs import triton_rpcs
from modelserver.ext.triton.statistics import statistics_of

LOCAL, REMOTE = "127.0.0.1:5000", "10.0.0.1:5000"


class OneModel:
    """A registry with a hundred times the same model."""

    def __init__(self):
        self.model = version()
        self.model.metrics.batches.finished(2, 2, 4, "size", 0.004, (0.001, 0.002, 0.001))

    def get(self, name, _=None):
        if name != "m":
            raise ModelNotFound.named(name)
        return self.model

    def versions(self, _=None):
        return [self.model] * 100

    def is_default(self, _):
        return True


async def respond(registry, method, /, *, client=LOCAL, **fields):
    services = SimpleNamespace(registry=registry, settings=None, shared=None)
    request = message(f"inference.{method}Request")(**fields)
    call = SimpleNamespace(client=client)
    return await method_of(method, triton_rpcs(services)[method])(request, call)


async def test_statistics_are_made_one_version_in_a_turn():
    registry = OneModel()
    response, turns = await turns_of(respond(registry, "ModelStatistics"))

    assert turns >= 100
    models = [statistics_of(registry.model)] * 100
    assert response == ParseDict({"model_stats": models}, message("inference.ModelStatisticsResponse")())


async def test_log_changes_need_a_local_client():
    settings = (await respond(OneModel(), "LogSettings", client=REMOTE)).settings
    with pytest.raises(MethodNotAllowed):
        await respond(OneModel(), "LogSettings", client=REMOTE, settings={"log_error": {"bool_param": True}})

    changed = await respond(OneModel(), "LogSettings", settings={"log_error": {"bool_param": True}})
    assert settings["log_error"].bool_param is changed.settings["log_error"].bool_param is True
    assert settings["log_format"].string_param == "default"


@pytest.mark.parametrize("name", ["ModelConfig", "TraceSetting"])
async def test_missing_model_is_refused(name):
    field = {"ModelConfig": "name", "TraceSetting": "model_name"}[name]
    with pytest.raises(ModelNotFound):
        await respond(OneModel(), name, **{field: "gone"})
    assert await respond(OneModel(), name, **{field: "m"})
