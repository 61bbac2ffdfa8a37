"""What ``handler: calibration:`` names in an archive."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from PIL import Image

from modelserver_handlers.networks.int8.calibration_set import MOST_ROWS, calibration_rows
from modelserver_handlers.networks.int8.quantisation import NotInt8Error

if TYPE_CHECKING:
    from pathlib import Path


def prepare(rows: list[Any]) -> torch.Tensor:
    """Numbers as they are, pictures as pixels: as preprocess does for a client's request."""
    (row,) = rows
    data = row["data"]
    if isinstance(data, bytes):
        data = numpy.asarray(Image.open(io.BytesIO(data)))
    return torch.tensor(numpy.asarray(data), dtype=torch.float32)[None]


def picture(shade: int, side: int = 4) -> bytes:
    """A PNG of one shade."""
    file = io.BytesIO()
    Image.new("L", (side, side), shade).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """With three pictures in ``samples``, not made in the order of their names."""
    samples = tmp_path / "archive" / "samples"
    samples.mkdir(parents=True)
    for shade in (2, 0, 1):
        (samples / f"{shade}.png").write_bytes(picture(shade))
    return samples.parent


def why_not(archive: Path, name: str) -> str:
    """The reason for which there is no set of this name."""
    with pytest.raises(NotInt8Error) as caught:
        calibration_rows(archive, name, prepare)
    return str(caught.value)


@pytest.mark.parametrize("name", ["samples", "samples/", "samples/*.png", "sam*/*"])
def test_pictures(archive: Path, name: str) -> None:
    """A folder or a pattern names files that are prepared like requests, in the order of their names."""
    rows = calibration_rows(archive, name, prepare)

    assert rows.shape == (3, 4, 4)
    assert rows[:, 0, 0].tolist() == [0, 1, 2]


def test_one_file(archive: Path) -> None:
    """A single file is a set too."""
    assert calibration_rows(archive, "samples/1.png", prepare).tolist() == torch.ones(1, 4, 4).tolist()


def test_a_broken_picture_among_many(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out and named, and the others count."""
    (archive / "samples" / "0.png").write_bytes(picture(0)[:40])
    (archive / "samples" / "more").mkdir()

    assert len(calibration_rows(archive, "samples", prepare)) == 2
    assert caplog.messages[0].startswith("Left out of the calibration set: 0.png: ")


def test_arrays(archive: Path) -> None:
    """Each row of a .npy file is an input as it is, in float32."""
    numpy.save(archive / "rows.npy", numpy.arange(6.0).reshape(2, 3))
    rows = calibration_rows(archive, "rows.npy", prepare)

    assert rows.dtype == torch.float32
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_json(archive: Path) -> None:
    """Each element of a list in a .json file is prepared like a request."""
    (archive / "rows.json").write_text(json.dumps([[1, 2], [3, 4]]))

    assert calibration_rows(archive, "rows.json", prepare).tolist() == [[1, 2], [3, 4]]


def test_no_more_than_enough(archive: Path) -> None:
    """Loading does not take for ever: the first rows are enough."""
    numpy.save(archive / "a.npy", numpy.zeros((MOST_ROWS - 1, 2)))
    numpy.save(archive / "b.npy", numpy.ones((1_000, 2)))
    rows = calibration_rows(archive, "*.npy", prepare)

    assert len(rows) == MOST_ROWS
    assert rows[-1].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["absent", "no*thing", "empty"])
def test_an_absent_or_empty_set(archive: Path, name: str) -> None:
    """It is named."""
    (archive / "empty").mkdir()

    assert why_not(archive, name) == f"the archive has no calibration set '{name}', or it is empty"


@pytest.mark.parametrize("name", ["..", "../secret.npy", "samples/../../secret.npy", "/etc"])
def test_names_that_lead_out_of_the_archive(archive: Path, name: str) -> None:
    """Nothing else of the machine is read."""
    numpy.save(archive.parent / "secret.npy", numpy.zeros((2, 3)))

    assert why_not(archive, name) == f"the calibration set '{name}' must be in the archive"


@pytest.mark.parametrize("name", ["a\0b", "a**b", "a" * 300])
def test_a_name_that_is_none(archive: Path, name: str) -> None:
    """What the file system does not take is told like an absent set."""
    assert "calibration set 'a" in why_not(archive, name)


def test_different_shapes(archive: Path) -> None:
    """Rows of one set have one shape."""
    (archive / "samples" / "3.png").write_bytes(picture(0, side=5))

    assert "different shapes: [(4, 4), (5, 5)]" in why_not(archive, "samples")


@pytest.mark.parametrize("content", [b"", b"{}", b"[[1], [", b'[["a"]]', b"[]"])
def test_nothing_that_can_be_read(archive: Path, content: bytes) -> None:
    """A set all of whose files are broken is none."""
    (archive / "rows.json").write_bytes(content)

    assert why_not(archive, "rows.json") == "the calibration set 'rows.json' has no file that can be read"


def test_what_cannot_be_prepared(archive: Path) -> None:
    """A handler that rejects a file, or makes no tensor of it, leaves it out."""
    for made in (torch.empty(0), [1, 2]):
        with pytest.raises(NotInt8Error, match="no file that can be read"):
            calibration_rows(archive, "samples", lambda _rows, made=made: made)


def test_arrays_of_objects_are_not_loaded(archive: Path) -> None:
    """Files of a set run no code."""
    numpy.save(archive / "rows.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)

    assert "no file that can be read" in why_not(archive, "rows.npy")
