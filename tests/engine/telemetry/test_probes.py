"""Which requests are health checks."""

from __future__ import annotations

import pytest

from modelserver.engine.telemetry.probes import probe_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/ping", "/ping"),
        ("/livez/", "/livez"),
        ("/readyz?verbose", "/readyz"),
        ("/v2/health/live", "/v2/health/live"),
        ("/v2/health/ready", "/v2/health/ready"),
        ("/v1/models/m", "/v1/models/{name}"),
        ("/v2/models/m/ready", "/v2/models/{name}/ready"),
        ("/v2/models/m/versions/1.0/ready", "/v2/models/{name}/versions/{version}/ready"),
        ("grpc.health.v1.Health/Check", "grpc.health.v1.Health/Check"),
        ("inference.GRPCInferenceService/ServerReady", "inference.GRPCInferenceService/ServerReady"),
        (
            "org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping",
            "org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping",
        ),
    ],
)
def test_health_checks_have_a_path_without_names(target: str, path: str) -> None:
    """So that clients cannot make series by asking for names."""
    assert probe_path(target) == path


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "",
        "/predictions/ping",
        "/predictions/ready",
        "/predictions/v2/models/m/ready",
        "/v1/models",
        "/v1/models/m:predict",
        "/v2/models/m",
        "/metrics",
        "inference.GRPCInferenceService/ModelInfer",
    ],
)
def test_other_requests_are_none(target: str) -> None:
    """Predictions, also those of models with such names, metadata, and scrapes."""
    assert probe_path(target) == ""
