"""How much work Python does: the same on any machine, however busy it is."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def opcodes_of(work: Callable[[], Any]) -> int:
    """How many instructions of bytecode it takes; what is done in C counts nothing."""
    count = 0

    def trace(frame: FrameType, event: str, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    # Calls of the garbage collector would count, too.
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
