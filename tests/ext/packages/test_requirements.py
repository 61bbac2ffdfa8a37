import os

import pytest

from modelserver.ext.packages.environments import digest


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "archive"
    (made / "wheels").mkdir(parents=True)
    (made / "wheels" / "own.whl").write_bytes(b"wheel")
    (made / "limits.txt").write_text("numpy<3\n")
    (made / "requirements.txt").write_text("tiny==1.0\n")
    (made / "weights.pt").write_bytes(b"weights")
    return made


def _digest(folder, text, *further):
    (folder / "requirements.txt").write_text(text)
    return digest(folder / "requirements.txt", folder, *further)


def test_the_same_is_the_same_anywhere(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for text in ("tiny==1.0\n", "./wheels/own.whl\n"):
        (other / "wheels").mkdir(exist_ok=True)
        (other / "wheels" / "own.whl").write_bytes(b"wheel")
        assert _digest(folder, text, "python") == _digest(other, text, "python")


def test_what_the_digest_depends_on(folder, tmp_path):
    """A list may lead to another, also in a circle; without one the digest depends on the Python only."""
    before = _digest(folder, "tiny==1.0\n", "3.10")
    assert _digest(folder, "tiny==1.1\n", "3.10") != before
    assert _digest(folder, "tiny==1.0\n", "3.11") != before
    (folder / "weights.pt").write_bytes(b"other weights")
    assert _digest(folder, "tiny==1.0\n", "3.10") == before

    (folder / "more.txt").write_text("-r requirements.txt\n-f wheels\n")
    before = _digest(folder, "-r more.txt\n")
    (folder / "wheels" / "own.whl").write_bytes(b"another")

    assert _digest(folder, "-r more.txt\n") != before

    other = tmp_path / "other"
    other.mkdir()

    assert _digest(folder, "-e ./package\n") != _digest(other, "-e ./package\n")

    assert digest(None, folder, "3.10") != digest(None, folder, "3.11")


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("./wheels/own.whl", "wheels/own.whl"),
        ("wheels/own.whl[extra] ; python_version > '3'", "wheels/own.whl"),
        ("--find-links wheels", "wheels/own.whl"),
        ("-f ./wheels  # ours", "wheels/own.whl"),
        ("--find-links=wheels", "wheels/own.whl"),
        ("-c limits.txt", "limits.txt"),
        ("-r limits.txt", "limits.txt"),
        ("--requirement=limits.txt", "limits.txt"),
    ],
)
def test_local_files_count(folder, line, file):
    """A wheel of the same name with other content is another environment."""
    before = _digest(folder, line)
    (folder / file).write_text("numpy<4")
    assert _digest(folder, line) != before


def test_files_outside_the_archive_count_by_size_and_time(folder, tmp_path):
    wheel = tmp_path / "outside.whl"
    wheel.write_bytes(b"one")
    line = f"{wheel}\n-f ../\n"
    before = _digest(folder, line)
    assert _digest(folder, line) == before
    os.utime(wheel, (1, 1))

    assert _digest(folder, line) != before
