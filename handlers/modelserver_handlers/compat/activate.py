"""Importing this offers TorchServe's names (``ts.…``) to the whole process: for tests of handlers.

In a ``conftest.py``: ``import modelserver_handlers.compat.activate``; or on the command line:
``pytest -p modelserver_handlers.compat.activate``. Workers of the server need neither.

Raises ImportError if another ``ts`` has been imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from modelserver_handlers.compat import PATH, offer_ts_names

_loaded = getattr(sys.modules.get("ts"), "__file__", None)
if _loaded is not None and not Path(_loaded).is_relative_to(PATH):
    raise ImportError(f"Another package ts is in use already ({_loaded}): import this before it.")
offer_ts_names()
