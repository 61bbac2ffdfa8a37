"""What importing costs."""

from __future__ import annotations

import subprocess
import sys


def test_context_needs_neither_torch_nor_pillow() -> None:
    """The worker imports the package, the context, errors and labels before it has loaded torch."""
    script = (
        "import sys, modelserver_handlers, modelserver_handlers.context, modelserver_handlers.errors,"
        " modelserver_handlers.labels; print({'torch', 'PIL', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr.strip()) == ("set()", "")
