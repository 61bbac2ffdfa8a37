"""What importing costs."""

from __future__ import annotations

import subprocess
import sys


def test_context_needs_neither_torch_nor_pillow() -> None:
    """The worker imports what every handler needs before it knows whether this one needs torch."""
    script = (
        "import sys, modelserver_handlers, modelserver_handlers.context, modelserver_handlers.errors,"
        " modelserver_handlers.labels, modelserver_handlers.envelopes, modelserver_handlers.tensor_rows as t;"
        " t.TensorRows([], {}); print({'torch', 'PIL', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr.strip()) == ("set()", "")
