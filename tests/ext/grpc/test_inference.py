"""TorchServe's inference service; what its methods answer is in tests/e2e/test_grpc.py."""

import json
from types import SimpleNamespace

from tests.ext.grpc.calling import FakeCall

from modelserver.ext.grpc.inference import InferenceService


async def test_ping_says_what_rest_says():
    """The text of ``/ping``; the call ends well either way."""
    for is_healthy, status in ((True, "Healthy"), (False, "Unhealthy")):
        registry = SimpleNamespace(healthy=is_healthy)
        answer = await InferenceService(registry).ping(None, FakeCall())
        assert json.loads(answer.health)["status"] == status
