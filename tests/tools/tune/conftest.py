import pytest
from tests.tools.tune.tune_samples import FakeBench, Notes

from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.tune.goal import parse_goal
from modelserver.tools.tune.sweep import SearchBounds
from modelserver.tools.tune.tuner import Tuner


@pytest.fixture
def result():
    """The result for a handler of 20 + 2n ms under a limit of 70 ms."""
    return Tuner(FakeBench(), parse_goal("p99<=70ms"), SearchBounds(), 300.0, Notes()).run()


A_MS, B_MS, LIMIT_MS = 15, 5, 100
HANDLER = f"""
import time

def handle(data, context):
    if data is None:
        return None
    time.sleep(({A_MS} + {B_MS} * len(data)) / 1000)
    return ["done"] * len(data)
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A directory with an archive and an input, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sleeper.py").write_text(HANDLER)
    (tmp_path / "model-config.yaml").write_text("responseTimeout: 60  # seconds\nbatchSize: 3\n")
    build_archive(
        ArchiveConfig("sleeper", "sleeper.py", "1.0", config_file="model-config.yaml", export_path=tmp_path)
    )
    (tmp_path / "model-config.yaml").unlink()
    (tmp_path / "in.json").write_text("{}")
    return tmp_path
