import pytest
from tests.surface.auth.conftest import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key_file.json"
