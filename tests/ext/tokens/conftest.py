import pytest
from tests.surface.auth.conftest import clock  # noqa: F401 - a fixture


@pytest.fixture
def path(tmp_path):
    return tmp_path / "key_file.json"
