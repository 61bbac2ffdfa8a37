"""Observes the handler of an ordinary worker: how it loads, and what each call does."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import socket
import sys
import time
import traceback
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from modelserver.engine.worker import runtime
from modelserver.tools.doctor.probing import LOOKS_EVERY, PROBE, Called, Imported, Reported, SourceLine
from modelserver.tools.doctor.worker.networks import Building, Gradients, networks_in_training
from modelserver.tools.doctor.worker.watch import CallWatch, place_of_caller, place_of_code
from modelserver_handlers.errors import text_of
from modelserver_handlers.failures import in_short
from modelserver_handlers.loader import Entry, LoadedHandler, load_handler

# How long imports take, by package, and which of them the model's own code asks for.

# Seconds below which an import is not worth telling, unless the model's own code asks for it.
_SHORTEST = 0.001
_NAME = "_find_and_load"


class ImportClock:
    """Measures while it is entered. Modules that were imported before cost nothing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own: defaultdict[str, float] = defaultdict(float)
        self._requested: dict[str, tuple[float, SourceLine]] = {}
        # Seconds spent in imports within each of those that are running.
        self._within: list[float] = []
        # The function that all imports of new modules go through.
        self._machinery: Any = importlib._bootstrap
        self._original: Any = getattr(self._machinery, _NAME, None)

    def __enter__(self) -> ImportClock:
        if self._original is not None:
            setattr(self._machinery, _NAME, self._find_and_load)
        return self

    def __exit__(self, *error: object) -> None:
        if self._original is not None:
            setattr(self._machinery, _NAME, self._original)

    def packages(self) -> list[Imported]:
        """The packages, the longest first."""
        names = {name for name, seconds in self._own.items() if seconds >= _SHORTEST} | self._requested.keys()
        imported = [
            Imported(name, self._own[name], *self._requested.get(name, (0.0, None))) for name in names
        ]
        return sorted(imported, key=lambda each: -each.own)

    def _find_and_load(self, name: str, import_: Any) -> Any:
        package = name.partition(".")[0]
        place = None if package in self._requested else place_of_caller(self._folder, directly=True)
        self._within.append(0.0)
        started = time.perf_counter()
        try:
            return self._original(name, import_)
        finally:
            seconds = time.perf_counter() - started
            self._own[package] += seconds - self._within.pop()
            if self._within:
                self._within[-1] += seconds
            if place is not None:
                self._requested[package] = seconds, place


# Calls after which networks are looked at again, as some handlers load in the first one.
_CALLS_WITH_NETWORKS = 3
_BUILT_IN = "modelserver_handlers."
_METHODS = [
    "initialize",
    "load",
    "handle",
    "predict",
    "preprocess",
    "inference",
    "postprocess",
    "prepare",
    "answer",
]


class Observer:
    """Takes the place of the worker's loader; reports go to ``reports``."""

    def __init__(self, reports: socket.socket) -> None:
        self._reports = reports
        self._calls = 0

    def load_handler(self, handler: str, model_dir: Path) -> LoadedHandler:
        """Loads a handler as the worker does, and observes its entry and its initialisation."""
        self._folder = str(model_dir)
        self._watch = CallWatch(self._folder)
        clock = self._clock = ImportClock(self._folder)
        started = time.perf_counter()
        with clock:
            loaded = load_handler(handler, model_dir)
        self._import_seconds = time.perf_counter() - started
        self._handler = loaded
        entry = loaded.entry
        if not inspect.iscoroutinefunction(entry):
            entry = partial(self._call, entry)
        return replace(loaded, entry=entry, setup=self._initialize)

    def _initialize(self, context: Any) -> object:
        started = time.perf_counter()
        with self._clock:
            result = self._handler.setup(context)
        seconds = time.perf_counter() - started
        instance = self._handler.instance
        self._send(
            Reported(
                self._clock.packages(),
                self._import_seconds,
                seconds,
                base_of(instance),
                methods_of(instance, self._handler.entry, self._folder),
                networks_in_training(instance, self._folder),
            )
        )
        # What is there now stays, and need not be looked at in every search for garbage.
        gc.collect()
        gc.freeze()
        self._watch.install()
        return result

    def _call(self, entry: Entry, data: list[Any], context: Any) -> Any:
        self._calls += 1
        answers, error, raised = -1, "", None
        gradients, building = Gradients(self._folder), Building(self._folder)
        self._watch.begin()
        try:
            with gradients, building:
                outputs = entry(data, context)
            answers = len(outputs) if isinstance(outputs, list) else -1
        except BaseException as raising:
            error, raised = in_short(f"{type(raising).__name__}: {text_of(raising)}"), self._where(raising)
            raise
        else:
            return outputs
        finally:
            self._watch.end()
            early = self._calls <= _CALLS_WITH_NETWORKS
            self._send(
                Called(
                    len(data),
                    answers,
                    error,
                    raised,
                    self._watch.opened,
                    self._watch.started,
                    gradients.place,
                    gradients.left_on,
                    networks_in_training(self._handler.instance, self._folder) if early else [],
                    self._blocks(),
                    building.place,
                )
            )

    def _where(self, error: BaseException) -> SourceLine | None:
        """The innermost line of the model's own code that an exception went through."""
        frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        places = (place_of_code(code, self._folder, line) for code, line in reversed(frames))
        return next(filter(None, places), None)

    def _blocks(self) -> int | None:
        if self._calls % LOOKS_EVERY:
            return None
        gc.collect()
        return sys.getallocatedblocks()

    def _send(self, report: Reported | Called) -> None:
        # The checker may have gone.
        with contextlib.suppress(OSError):
            self._reports.send(msgspec.msgpack.encode(report))


def base_of(instance: Any) -> str:
    """The module of the built-in handler that an object's class is or extends, empty for none."""
    for cls in type(instance).__mro__:
        if cls.__module__.startswith(_BUILT_IN):
            return str(cls.__module__.removeprefix(_BUILT_IN))
    return ""


def methods_of(instance: Any, entry: Any, folder: str) -> dict[str, SourceLine]:
    """Where the model's own methods, or its function, begin."""
    functions = {name: getattr(type(instance), name, None) for name in _METHODS}
    if instance is None:
        functions = {"handle": entry}
    places = {}
    for name, function in functions.items():
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is not None and (place := place_of_code(code, folder)) is not None:
            places[name] = place
    return places


def main() -> None:
    """Runs the worker, observed."""
    reports = socket.socket(fileno=int(os.environ.pop(PROBE)))
    observer = Observer(reports)
    # Only what is loaded is observed; the rest of the worker is as always. Batches are not prepared in
    # another thread, where half of a call could not be told from another's.
    vars(runtime).update(load_handler=observer.load_handler, can_prefetch=lambda handler: False)
    runtime.main()
