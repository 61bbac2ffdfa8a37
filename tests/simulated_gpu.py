"""GPUs that torch seems to have: what is placed on them stays in the processor's memory.

Only the part of ``torch.cuda`` that the product uses is there. Like on a real GPU, an error of a kernel is
raised by whatever waits for it or uses the GPU next, and then by everything (a *sticky* error) until the
process ends.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GIB = 1 << 30
ASSERTION = "CUDA error: device-side assert triggered"

_EXPLANATION = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
    " might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
# Functions of torch that take a device, by name.
_FACTORIES = """
    arange as_tensor asarray empty empty_like full ones ones_like rand randint randn tensor zeros zeros_like
"""
_WAITING = ("item", "cpu", "tolist", "numpy")  # methods of tensors that wait for the GPU


def cuda_error(message: str = ASSERTION) -> RuntimeError:
    """An error as torch raises it for one of CUDA's."""
    kind: Callable[[str], RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(message + _EXPLANATION)


def is_on_gpu(place) -> bool:
    if isinstance(place, str):
        return place.partition(":")[0] == "cuda"
    return isinstance(place, torch.device) and place.type == "cuda"


class SimulatedGpus:
    """``count`` GPUs of ``memory`` bytes each.

    ``lost``: CUDA is unusable, as without device files. ``error``: the sticky error of this process, if any.
    ``calls``: names of the functions of ``torch.cuda`` that were called, in order. ``contexts``: the numbers
    of the GPUs that this process has used. ``capturing``: a CUDA graph is being recorded; if it fails, its
    stream stays the current one if ``keeps_stream``, as before torch 2.15. ``replayed`` counts replays.
    """

    def __init__(self, count: int = 1, memory: int = 80 * GIB, capability: tuple[int, int] = (9, 0)) -> None:
        self.count = count
        self.memory = memory
        self.capability = capability
        self.lost = False
        self.error = ""
        self.allocated = 0
        self.calls: list[str] = []
        self.contexts: set[int] = set()
        self.capturing = self.keeps_stream = False
        self.replayed = 0
        self._threads = threading.local()
        self._default = _Stream(self)

    # What happens on a GPU

    def launch(self) -> None:
        """As a kernel that is started: raises the sticky error, if there is one."""
        self.contexts.add(self.current)
        if self.lost:
            raise RuntimeError("No CUDA GPUs are available")
        if self.error:
            raise cuda_error(self.error)

    def wait(self) -> None:
        """As what waits for the GPU, which nothing may while a graph is recorded."""
        self.launch()
        if self.capturing:
            raise cuda_error("CUDA error: operation not permitted when stream is capturing")

    def fail(self, message: str = ASSERTION) -> None:
        """A kernel that was started fails: nobody notices until something waits for it."""
        self.launch()
        self.error = message

    def allocate(self, size: int) -> None:
        """Takes memory. Raises torch.OutOfMemoryError if there is too little."""
        self.launch()
        free = self.memory - self.allocated
        if size > free:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU {self.current} has a total"
                f" capacity of {self.memory / GIB:.2f} GiB of which {free / GIB:.2f} GiB is free."
            )
        self.allocated += size

    @contextlib.contextmanager
    def allocation(self, size: int) -> Iterator[None]:
        """Memory that is taken within."""
        self.allocate(size)
        try:
            yield
        finally:
            self.allocated -= size

    def hold(self, size: int) -> Held:
        """Memory that is taken as a tensor takes it: until nothing refers to the result."""
        self.allocate(size)
        held = Held()
        weakref.finalize(held, self._free, size)
        return held

    def _free(self, size: int) -> None:
        self.allocated -= size

    @property
    def current(self) -> int:
        """The calling thread's current device."""
        return int(getattr(self._threads, "device", 0))

    # Installing it

    def install(self, put: Callable[[Any, str, Any], None] = setattr) -> SimulatedGpus:
        """Replaces torch's functions by ``put(owner, name, value)``, for example ``monkeypatch.setattr``."""
        for name in _FACTORIES.split():
            put(torch, name, self._placed(getattr(torch, name)))
        put(torch.Tensor, "to", self._placed(torch.Tensor.to))
        put(torch.Tensor, "pin_memory", lambda tensor: tensor)
        for name in _WAITING:
            put(torch.Tensor, name, self._waiting(getattr(torch.Tensor, name)))
        put(torch.Tensor, "cuda", lambda tensor, *_a, **_k: tensor.to(torch.device("cuda")))
        put(torch.Tensor, "record_stream", lambda _tensor, _stream: self.calls.append("record_stream"))
        put(torch.jit, "load", self._placed(torch.jit.load))
        put(torch.backends.cuda, "is_built", lambda: True)
        # The compiler would look for its streams, which it only needs to follow a change of them.
        put(torch.accelerator, "is_available", lambda: False)
        for name, value in self._functions().items():
            put(torch.cuda, name, value)
        return self

    def _placed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with every GPU among its arguments replaced by the processor."""

        @functools.wraps(function)
        def call(*args, **kwargs):
            places = [*args, *kwargs.values()]
            if not (any(is_on_gpu(place) for place in places) or kwargs.pop("pin_memory", False)):
                return function(*args, **kwargs)
            self.launch()
            on_processor = [torch.device("cpu") if is_on_gpu(each) else each for each in args]
            named = {key: torch.device("cpu") if is_on_gpu(each) else each for key, each in kwargs.items()}
            return function(*on_processor, **named)

        return call

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args, **kwargs):
            if self.error or self.capturing:
                self.wait()
            return function(*args, **kwargs)

        return call

    def _functions(self) -> dict[str, Any]:
        functions: dict[str, Callable[..., Any]] = {
            "is_available": lambda: not self.lost and self.count > 0,
            "device_count": lambda: 0 if self.lost else self.count,
            "is_initialized": lambda: bool(self.contexts),
            "init": self.launch,
            "current_device": lambda: self.current,
            "set_device": self._set_device,
            "get_device_name": lambda _device=None: "Simulated GPU",
            "get_device_capability": lambda _device=None: self.capability,
            "get_device_properties": self._properties,
            "mem_get_info": lambda _device=None: (self.memory - self.allocated, self.memory),
            "memory_allocated": lambda _device=None: self.allocated,
            "memory_reserved": lambda _device=None: self.allocated,
            "synchronize": lambda _device=None: self.wait(),
            "empty_cache": lambda: None,
            "get_rng_state": lambda _device=None: torch.ByteTensor(),
            "set_rng_state": lambda _state, _device=None: None,
            "current_stream": lambda _device=None: getattr(self._threads, "stream", self._default),
            "default_stream": lambda _device=None: self._default,
            "set_stream": self._set_stream,
            "graph_pool_handle": lambda: (0, 0),
            "is_current_stream_capturing": lambda: self.capturing,
        }
        noted = {name: self._noted(name, function) for name, function in functions.items()}
        return {
            **noted,
            "device": self._device,
            "stream": self._stream,
            "graph": self._graph,
            "CUDAGraph": lambda: _Graph(self),
            "Stream": lambda *_a, **_k: _Stream(self),
            "Event": lambda *_a, **_k: _Event(self),
        }

    def _noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args, **kwargs):
            self.calls.append(name)
            return function(*args, **kwargs)

        return call

    def _set_device(self, device) -> None:
        number = device if isinstance(device, int) else torch.device(device).index or 0
        if number >= self.count:
            raise cuda_error("CUDA error: invalid device ordinal")
        self._threads.device = number

    @contextlib.contextmanager
    def _device(self, device) -> Iterator[None]:
        before = self.current
        self._set_device(device)
        try:
            yield
        finally:
            self._threads.device = before

    def _set_stream(self, stream: _Stream) -> None:
        self._threads.stream = stream

    @contextlib.contextmanager
    def _stream(self, stream: _Stream) -> Iterator[None]:
        before = getattr(self._threads, "stream", self._default)
        self._set_stream(stream)
        try:
            yield
        finally:
            self._set_stream(before)

    @contextlib.contextmanager
    def _graph(self, graph: _Graph, **_options) -> Iterator[None]:
        before = getattr(self._threads, "stream", self._default)
        self._set_stream(_Stream(self))
        self.capturing = True
        try:
            with graph:
                yield
        except BaseException:
            if self.keeps_stream:
                before = self._threads.stream
            raise
        finally:
            self.capturing = False
            self._set_stream(before)

    def _properties(self, _device=None) -> SimpleNamespace:
        major, minor = self.capability
        numbers = {"total_memory": self.memory, "multi_processor_count": 132}
        return SimpleNamespace(name="Simulated GPU", major=major, minor=minor, **numbers)


class Held:
    """Memory that is taken."""


class _Stream:
    """A stream on which everything is complete at once."""

    def __init__(self, gpus: SimulatedGpus) -> None:
        self._gpus = gpus

    def wait_stream(self, stream: _Stream) -> None:
        """Torch's method."""

    def synchronize(self) -> None:
        self._gpus.launch()


class _Graph(TorchDispatchMode):
    """The operations within, which a replay computes anew from and to the same memory."""

    def __init__(self, gpus: SimulatedGpus) -> None:
        super().__init__()
        self._gpus = gpus
        self._steps: list[tuple[Callable[[], Any], Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """torch calls this method for each operation."""
        step = functools.partial(func, *args, **(kwargs or {}))
        results = step()
        self._steps.append((step, results))
        return results

    def replay(self) -> None:
        self._gpus.launch()
        self._gpus.replayed += 1
        with torch.inference_mode():
            for step, results in self._steps:
                for result, again in zip(tree_leaves(results), tree_leaves(step()), strict=True):
                    if isinstance(result, torch.Tensor) and result.data_ptr() != again.data_ptr():
                        result.copy_(again)


class _Event:
    def __init__(self, gpus: SimulatedGpus) -> None:
        self._gpus = gpus

    def record(self, _stream=None) -> None:
        """As torch's: on the stream's device, here the thread's current one."""
        self._gpus.launch()

    def synchronize(self) -> None:
        self._gpus.launch()

    def elapsed_time(self, _end: _Event) -> float:
        """As torch's, in milliseconds."""
        return 1.0
