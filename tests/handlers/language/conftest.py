"""What the tests of language models share."""

import pytest
from tests.handlers.language.pretended_vllm import pretend


@pytest.fixture
def pretended_vllm(monkeypatch):
    """``import vllm`` finds the pretended one."""
    pretend(monkeypatch)
