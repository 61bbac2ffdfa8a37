import os

import pytest
from tests.simulated_gpu import SimulatedGpus


@pytest.fixture
def gpus(monkeypatch):
    gpus = SimulatedGpus().install(monkeypatch.setattr)
    gpus.launch()
    return gpus


@pytest.fixture
def leaves(monkeypatch):
    """What is raised where the process would end."""

    def leave(_status):
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    return SystemExit
