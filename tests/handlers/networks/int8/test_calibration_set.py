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


@pytest.mark.parametrize(
    ("name", "shades"),
    [("samples", [0, 1, 2]), ("samples/", [0, 1, 2]), ("samples/*.png", [0, 1, 2]), ("samples/1.png", [1])],
)
def test_files_are_prepared_like_requests(archive: Path, name: str, shades: list[int]) -> None:
    """A folder, a pattern or a path names them; they come in the order of their names."""
    rows = calibration_rows(archive, name, prepare)

    assert rows.shape == (len(shades), 4, 4)
    assert rows[:, 0, 0].tolist() == shades


def test_a_broken_picture_is_left_out(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out and named, and the others count."""
    (archive / "samples" / "0.png").write_bytes(picture(0)[:40])
    (archive / "samples" / "more").mkdir()

    assert len(calibration_rows(archive, "samples", prepare)) == 2
    assert caplog.messages[0].startswith("Left out of the calibration set: 0.png: ")


def test_rows_of_arrays_are_inputs(archive: Path) -> None:
    """Each row of a .npy file is an input as it is, in float32."""
    numpy.save(archive / "rows.npy", numpy.arange(6.0).reshape(2, 3))
    rows = calibration_rows(archive, "rows.npy", prepare)

    assert rows.dtype == torch.float32
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_elements_of_json_are_prepared(archive: Path) -> None:
    """Each element of a list in a .json file is prepared like a request."""
    (archive / "rows.json").write_text(json.dumps([[1, 2], [3, 4]]))

    assert calibration_rows(archive, "rows.json", prepare).tolist() == [[1, 2], [3, 4]]


def test_rows_beyond_the_limit_are_left_out(archive: Path) -> None:
    """Loading does not take for ever: the first rows are enough."""
    numpy.save(archive / "a.npy", numpy.zeros((MOST_ROWS - 1, 2)))
    numpy.save(archive / "b.npy", numpy.ones((1_000, 2)))
    rows = calibration_rows(archive, "*.npy", prepare)

    assert len(rows) == MOST_ROWS
    assert rows[-1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *(
            (name, "the archive has no calibration set '{}', or it is empty")
            for name in ("absent", "no*", "empty")
        ),
        *(
            (name, "the calibration set '{}' must be in the archive")
            for name in ("..", "../secret.npy", "samples/../../secret.npy", "/etc")
        ),
        *((name, "calibration set 'a") for name in ("a\0b", "a**b", "a" * 300)),
    ],
)
def test_sets_that_there_are_not_are_named(archive: Path, name: str, reason: str) -> None:
    """So are names that lead out of the archive: nothing else of the machine is read."""
    (archive / "empty").mkdir()
    numpy.save(archive.parent / "secret.npy", numpy.zeros((2, 3)))

    assert reason.format(name) in why_not(archive, name)


def test_different_shapes_are_refused(archive: Path) -> None:
    """Rows of one set have one shape."""
    (archive / "samples" / "3.png").write_bytes(picture(0, side=5))

    assert "different shapes: [(4, 4), (5, 5)]" in why_not(archive, "samples")


@pytest.mark.parametrize("content", [b"", b"{}", b"[[1], [", b'[["a"]]', b"[]"])
def test_broken_files_are_refused(archive: Path, content: bytes) -> None:
    """A set all of whose files are broken is none."""
    (archive / "rows.json").write_bytes(content)

    assert why_not(archive, "rows.json") == "the calibration set 'rows.json' has no file that can be read"


def test_files_that_cannot_be_prepared_are_left_out(archive: Path) -> None:
    """A handler that rejects a file, or makes no tensor of it, leaves it out."""
    for made in (torch.empty(0), [1, 2]):
        with pytest.raises(NotInt8Error, match="no file that can be read"):
            calibration_rows(archive, "samples", lambda _rows, made=made: made)


def test_arrays_of_objects_are_not_loaded(archive: Path) -> None:
    """Files of a set run no code."""
    numpy.save(archive / "rows.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)

    assert "no file that can be read" in why_not(archive, "rows.npy")
