"""docs/extending.md: its extension is written as the page says, and serves."""

import os
import signal
import subprocess
import sys

import httpx
from tests.e2e.blocks import BLOCKS
from tests.e2e.serving import ROOT, free_port, wait_until

CODE = BLOCKS["docs/extending.md: The extension: python 1"].text
ROW = BLOCKS["docs/extending.md: The row: python 1"].text
COMMAND = f"""
import os, sys
from modelserver.ext import EXTENSIONS
from modelserver.extension import ExtensionRow
from modelserver.run import start_stop
table = {{{ROW.replace("modelserver.ext.batch_sizes", "batch_sizes")}}}
sys.exit(start_stop.main(sys.argv[1:], {{**EXTENSIONS, **table}}))
"""


def test_extension_of_the_page_counts_batches(tmp_path):
    """Its route and its metric have the sizes of the batches; a request gets its answer as before."""
    folder = tmp_path / "batch_sizes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "extension.py").write_text(CODE)
    inference, management, metrics = (free_port() for _ in range(3))
    settings = tmp_path / "config.properties"
    settings.write_text(
        f"inference_address=http://127.0.0.1:{inference}\nmanagement_address=http://127.0.0.1:{management}\n"
        f"metrics_address=http://127.0.0.1:{metrics}\nenable_grpc_api=false\n"
    )
    model = ["--model-store", str(ROOT / "model_store"), "--models", "mnist.mar"]
    flags = ["--foreground", "--ncs", "--ts-config", str(settings), *model]
    own = {"PYTHONPATH": str(tmp_path), "MODELSERVER_BATCH_SIZES": "1", "TMPDIR": str(tmp_path)}
    server = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *flags],
        cwd=tmp_path,
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(timeout=30) as client:
            wait_until(lambda: _is_ready(client, inference), "the server is ready")
            picture = (ROOT / "examples" / "mnist" / "digit-2.png").read_bytes()
            answer = client.put(f"http://127.0.0.1:{inference}/predictions/mnist", content=picture)
            sizes = client.get(f"http://127.0.0.1:{management}/batch-sizes")
            text = client.get(f"http://127.0.0.1:{metrics}/metrics").text
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)

    assert (answer.status_code, answer.text) == (200, "2")
    assert sizes.json() == {"1": 1}
    assert 'answers_by_batch_size{size="1"} 1' in text


def _is_ready(client, port):
    try:
        return client.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False
