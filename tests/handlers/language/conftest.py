"""What the tests of language models share."""

from __future__ import annotations

import pytest
from tests.handlers.language.pretended_vllm import pretend


@pytest.fixture
def pretended_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import vllm`` finds the pretended one."""
    pretend(monkeypatch)
