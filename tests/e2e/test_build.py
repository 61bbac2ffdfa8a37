import shutil
import subprocess
import sys

import pytest
from tests.e2e.serving import Home, Server, serving

from modelserver.models.settings.properties import parse
from modelserver.tools.build.command import main

SCRIPT = """
import modelserver
from rows import double


class Doubler(modelserver.Handler):
    def predict(self, rows: list[float]) -> list[str]:
        return [f"{double(row)} {modelserver.__file__}" for row in rows]
"""


@pytest.mark.slow  # installs a wheel and starts a server from it, without what tests share: 7 s
def test_context_serves_its_model(tmp_path, capsys):
    """As docs/build.md begins, and without the folder that it was built from."""
    sources, target = tmp_path / "sources", tmp_path / "image"
    sources.mkdir()
    (sources / "doubler.py").write_text(SCRIPT)
    (sources / "rows.py").write_text("def double(row):\n    return 2 * row\n")
    flags = ["--output", str(target), "--batch-size", "8", "--workers", "1"]
    assert main([str(sources / "doubler.py"), *flags]) == 0
    assert f"Written: {target}" in capsys.readouterr().out
    shutil.rmtree(sources)
    (wheel,) = (target / "wheels").iterdir()
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, installed, wheel], check=True)

    settings = parse((target / "config.properties").read_bytes())
    portable = {key: each for key, each in settings.items() if "address" not in key and key != "model_store"}
    home = Home(tmp_path / "home", {"PYTHONPATH": str(installed)})
    with serving(Server(home, target / "model-store", settings=portable)) as server:
        answer = server.inference.post("/predictions/doubler", json=21)
        (described,) = server.management.get("/models/doubler").json()

    assert answer.text == f"42.0 {installed / 'modelserver' / '__init__.py'}"
    assert described["batchSize"] == 8
