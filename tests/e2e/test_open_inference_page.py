"""The examples of docs/open-inference.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import Home, Server, serving

from modelserver.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "open-inference.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the page's own handler."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "scale.py").write_text(PYTHON[0])
    build_archive(ArchiveConfig("scale", str(folder / "scale.py"), "1.0", export_path=folder))
    with serving(Server(Home(folder), folder)) as started:
        yield started.registered("scale.mar")


def test_the_request_in_json(server: Server) -> None:
    """It answers what the page shows, but for the id."""
    (body,) = re.findall(r"/v2/models/scale/infer -d '(.*)'", PAGE)
    (shown,) = re.findall(r"```json\n(.*)\n```", PAGE)
    answer = server.inference.post("/v2/models/scale/infer", content=body).json()

    assert {**answer, "id": "7f0c…"} == json.loads(shown)


def test_the_client(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Triton's client prints what was computed."""
    pytest.importorskip("tritonclient.http")
    exec(PYTHON[1].replace("localhost:8080", f"127.0.0.1:{server.port}"), {})

    assert capsys.readouterr().out == "[2. 5.]\n"
