import os
import subprocess
import sys
import tempfile

import pytest

from modelserver.engine.workdir import work_directory


@pytest.fixture
def temp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_work_directory_is_private_and_temporary(temp):
    """The work directory is for its owner only, says whose it is, and is gone afterwards (F68)."""
    with work_directory() as made:
        (made / "model").mkdir()
        assert made.parent == temp
        assert f"modelserver-{os.getpid()}-" in made.name
        assert made.stat().st_mode & 0o777 == 0o700

    assert list(temp.iterdir()) == []


def test_left_overs_are_removed(temp):
    """What processes that are gone left is swept away, also if another has their number, as in a container
    that was killed and restarted; what belongs to a living one, or to nobody known, stays (F48).
    """
    gone = temp / f"modelserver-{ended_process()}-abc"
    former = temp / f"modelserver-{os.getpid()}-abc"
    strange = temp / "modelserver-x-abc"
    for path in (gone, former, strange):
        (path / "model").mkdir(parents=True)
    with work_directory() as living, work_directory() as made:
        assert not gone.exists()
        assert not former.exists()
        assert living.exists()
        assert strange.exists()
        assert made != living


def test_a_killed_process_leaves_its_directory_to_others(temp):
    script = (
        "import time; from modelserver.engine.workdir import work_directory\n"
        "with work_directory() as made: print(made, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(temp)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdout:
        left = temp / process.stdout.readline().rstrip("\n")
        with work_directory():
            assert left.is_dir()
        process.kill()
        process.wait()
    with work_directory() as made:
        assert list(temp.iterdir()) == [made]
