"""Times of a handler's methods, if its configuration requests them (reference 13.5)."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from modelserver_handlers.handler_options import handler_settings

Method = TypeVar("Method", bound=Callable[..., Any])


def timed(func: Method) -> Method:
    """Reports the milliseconds that the method takes as the gauge ``ts_handler_<its name>``.

    Only with ``handler: {profile: true}`` in model-config.yaml; otherwise it has no effect. Once a process
    uses its GPU, the time is the GPU's, which the method waits for.
    """

    @functools.wraps(func)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        context: Any = getattr(self, "context", None)
        if not _profiles(context):
            return func(self, *args, **kwargs)
        stop = _start(context)
        result = func(self, *args, **kwargs)
        context.metrics.add_time(f"ts_handler_{func.__name__}", stop())
        return result

    return cast("Method", run)


def timeit(func: Method) -> Method:
    """Prints how many milliseconds each call takes (``ts.utils.timeit_decorator``)."""

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = func(*args, **kwargs)
        print(f"Timing function {func.__name__}: {(time.perf_counter() - started) * 1000:.3f} ms")
        return result

    return cast("Method", run)


def _profiles(context: Any) -> bool:
    config = getattr(context, "model_yaml_config", None)
    return isinstance(config, Mapping) and bool(handler_settings(config).get("profile"))


def _start(context: Any) -> Callable[[], float]:
    """Returns a function for the milliseconds since this call."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gpu_id = context.system_properties.get("gpu_id")
        return _start_on_gpu(torch, torch.cuda.current_device() if gpu_id is None else int(gpu_id))
    started = time.perf_counter()
    return lambda: (time.perf_counter() - started) * 1000


def _start_on_gpu(torch: Any, device: int) -> Callable[[], float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The current device may be another one: an event there would take memory of that GPU.
    with torch.cuda.device(device):
        begin.record()

    def stop() -> float:
        with torch.cuda.device(device):
            end.record()
            torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    return stop
