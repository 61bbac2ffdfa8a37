"""The life of a worker process: load the handler, answer batches until the server says stop or goes away."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from modelserver.wire.messages import Load, Loaded, LoadFailed, Ping, Pong, Predict, Stop
from modelserver.worker.channel import ServerChannel
from modelserver.worker.failures import explain_failure, print_failure
from modelserver.worker.loader import HandlerNotUsable, LoadedHandler, load_handler
from modelserver.worker.metrics import HandlerMetrics
from modelserver.worker.parent import die_with
from modelserver.worker.pipeline import Pipeline, can_prefetch
from modelserver.worker.service import Service, is_out_of_memory, timed
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.errors import ModelLoadError

# Trying again changes nothing about these.
_PERMANENT = (
    HandlerNotUsable,
    ModelLoadError,
    ImportError,
    SyntaxError,
    FileNotFoundError,
    AttributeError,
    NameError,
    yaml.YAMLError,
)


def main() -> None:
    """Runs a worker on the socket whose number is the first argument, for the server named by the second."""
    die_with(int(sys.argv[2]))
    be_left_alone()
    run(int(sys.argv[1]))


def be_left_alone() -> None:
    """Takes no notice of signals that are meant for the server, which lets batches finish first."""
    # Ctrl-C in a terminal reaches all its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # So may the SIGTERM of a service manager. Not ignored but handled, or programs that a handler starts
    # would inherit the deafness.
    signal.signal(signal.SIGTERM, lambda *_: None)


def run(descriptor: int) -> None:
    """Loads the model that the server names on this socket, and answers batches."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    channel = ServerChannel(socket.socket(fileno=descriptor))
    messages = channel.messages()
    load, _ = next(messages)
    assert isinstance(load, Load)  # noqa: S101 - the server's first message
    started = time.perf_counter()
    try:
        handler, service = load_service(load)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        print_failure(error)
        status = 507 if is_out_of_memory(error) else 500
        channel.send(
            LoadFailed(explain_failure(error, Path(load.model_dir)), status, isinstance(error, _PERMANENT))
        )
        os._exit(1)
    channel.send(Loaded(handler.built_in, time.perf_counter() - started))
    if can_prefetch(handler):
        Pipeline(handler.instance, service, channel).serve(messages)
    else:
        serve(messages, service, channel)


def serve(messages: Any, service: Service, channel: ServerChannel) -> None:
    """Answers one batch after the other, each from start to end."""
    for message, tail in messages:
        if isinstance(message, Predict):
            work = service.receive(message.sequence, message.rows, tail)
            seconds = timed(lambda: service.run(work))  # noqa: B023 - called before the next turn
            channel.send(*work.result(seconds))
        elif isinstance(message, Ping):
            channel.send(Pong())
        elif isinstance(message, Stop):
            return


def load_service(load: Load) -> tuple[LoadedHandler, Service]:
    """Imports and initialises the handler with the model directory as current directory (reference 12.1)."""
    model_dir = Path(load.model_dir)
    os.chdir(model_dir)
    # `-m` put the start directory there; the archive's own modules come first instead.
    sys.path[0] = str(model_dir)
    metrics = HandlerMetrics(load.model_name)
    context = Context(
        load.model_name,
        load.model_dir,
        read_manifest(model_dir),
        load.batch_size,
        load.gpu_id,
        load.server_version,
        limit_max_image_pixels=load.limit_max_image_pixels,
        metrics=metrics,
        model_yaml_config=read_config(model_dir, load.config_file),
    )
    context.begin(BatchState())
    handler = load_handler(load.handler, model_dir)
    handler.initialize(context)
    return handler, Service(handler.entry, context, load, metrics)


def read_manifest(model_dir: Path) -> dict[str, Any] | None:
    """The archive's own manifest, unaffected by what a registration overrides."""
    path = model_dir / "MAR-INF" / "MANIFEST.json"
    if not path.is_file():
        return None
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    return manifest


def read_config(model_dir: Path, name: str) -> dict[str, Any]:
    """The archive's model-config.yaml as handlers see it, whole."""
    if not name:
        return {}
    config = yaml.safe_load((model_dir / name).read_text("utf-8"))
    return config if isinstance(config, dict) else {}
