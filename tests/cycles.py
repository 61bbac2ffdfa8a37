"""Objects that only the collection of reference cycles would free."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cycles() -> Iterator[None]:
    """Holds that what happens inside leaves no reference cycles. The server collects them rarely."""
    while gc.collect():
        # Finalizers of earlier tests' objects leave more.
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        assert gc.garbage == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
