"""The example of a handler of one's own that computes whole batches (needs torch)."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import ROOT, Home, Server, serving

EXAMPLE = ROOT / "examples" / "resnet152"
PICTURE = (ROOT / "examples" / "mnist" / "digit-2.png").read_bytes()


@pytest.mark.slow
def test_batches_through_a_handler_of_ones_own(tmp_path, tmp_path_factory):
    """It answers as ``image_classifier``, in batches; a picture that cannot be read fails alone (F18)."""
    command = [sys.executable, EXAMPLE / "build.py", "--arch", "resnet18", "--weights", "random"]
    command += [
        "--model-name",
        "own",
        "--handler",
        EXAMPLE / "batching_handler.py",
        "--export-path",
        tmp_path,
    ]
    subprocess.run(command, check=True, capture_output=True)
    home = Home(tmp_path_factory.mktemp("example"))
    with serving(Server(home, tmp_path)) as server:
        for name, handler in (("own", None), ("built-in", "image_classifier")):
            batches = {"batch_size": 4, "max_batch_delay": 2000}
            server.registered("own.mar", model_name=name, handler=handler, **batches)
        with ThreadPoolExecutor(4) as pool:
            bodies = [PICTURE, PICTURE, b"no picture", PICTURE]
            answers = list(pool.map(lambda body: server.predict("own", body), bodies))
        reference = server.predict("built-in", PICTURE).json()
        # Only that handler knows what no picture is.
        assert server.predict("built-in", b"no picture").status_code == 400

    assert [answer.status_code for answer in answers] == [200, 200, 503, 200]
    assert {answer.headers["x-batch-size"] for answer in answers} == {"4"}
    for answer in (answers[0], answers[3]):
        assert answer.json() == pytest.approx(reference, rel=1e-3)
