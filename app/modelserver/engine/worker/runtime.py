"""A worker process: loads the handler, answers batches until the server sends stop or disconnects."""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from modelserver.engine.wire.messages import (
    ASYNC,
    CONTINUOUS,
    Annotations,
    Answer,
    Broken,
    Cancelled,
    Load,
    Loaded,
    LoadFailed,
    OutputSpec,
    Ping,
    Pong,
    Predict,
    Result,
    Side,
    Stop,
    ToServer,
)
from modelserver.engine.worker.channel import Dial, ServerChannel
from modelserver.engine.worker.continuous import ContinuousBatch
from modelserver.engine.worker.parent import die_with
from modelserver.engine.worker.pipeline import Pipeline, can_prefetch
from modelserver.engine.worker.service import Service, leave_if_broken, timed
from modelserver.engine.worker.tracing import close_exporting, open_exporting
from modelserver_handlers.compat import offer_ts_names
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.current_device import enter_thread
from modelserver_handlers.envelopes import ENVELOPES, TAKES_INSTANCES
from modelserver_handlers.errors import GpuNotUsable, LoadAgain
from modelserver_handlers.failures import explain_failure, is_permanent, print_failure
from modelserver_handlers.gpu_errors import is_out_of_memory
from modelserver_handlers.hints import hint_for
from modelserver_handlers.loader import (
    Entry,
    HandlerNotUsable,
    LoadedHandler,
    load_handler,
    read_config,
    read_manifest,
)
from modelserver_handlers.metrics.cache import send_emissions_to
from modelserver_handlers.metrics.collected import HandlerMetrics

# A worker process of a rank above 0, which computes what rank 0 computes, but does not send answers.

_FAILED = Answer(0, failed=True)


def keep_answers_back(channel: ServerChannel) -> None:
    """Makes the channel report loading and finished batches without answers, except one failed one if any."""
    send = channel.send

    def send_little(message: ToServer, bodies: Sequence[bytes] = ()) -> None:
        if isinstance(message, Result):
            failed = any(answer.failed for answer in message.answers)
            send(Result(message.sequence, [_FAILED] if failed else [], message.handler_time))
        elif isinstance(message, (Loaded, LoadFailed, Pong, Broken)):
            send(message)

    channel.send = send_little  # type: ignore[method-assign]


def excused(entry: Entry) -> Entry:
    """The handler, allowed to return anything: many return answers on rank 0 only."""

    def enter(data: list[Any], context: Any) -> Any:
        answers = entry(data, context)
        complete = isinstance(answers, list) and len(answers) == len(data)
        return answers if complete else [b""] * len(data)

    return enter


def main() -> None:
    """Runs a worker on the socket whose number is the first argument, for the server named by the second."""
    run_worker(int(sys.argv[1]), int(sys.argv[2]))


def run_worker(descriptor: int, parent: int | None = None, dial: Dial | None = None) -> None:
    """Runs this process as a worker on this socket; it ends with the process ``parent``.

    With ``dial``, its server is not at the other end, but where ``dial`` connects by what is sent there.
    """
    if parent is not None:
        die_with(parent)
    be_left_alone()
    run(ServerChannel(socket.socket(fileno=descriptor), dial))


def be_left_alone() -> None:
    """Ignores signals meant for the server, which lets batches finish first."""
    # Ctrl-C in a terminal reaches all its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # So may the SIGTERM of a service manager. Handled, as child processes would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, _stay)


def _stay(number: int, frame: FrameType | None) -> None:
    """The worker's reaction to SIGTERM: none."""


def let_forked_processes_end() -> None:
    """Lets SIGTERM end processes that a handler forks, from their first moment, unlike the worker.

    Their own reaction to SIGTERM, and whether the handler has blocked it, are left as they are.
    """
    # Several threads may fork at the same time, and each has its own mask.
    before = threading.local()

    def block() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def in_child() -> None:
        if signal.getsignal(signal.SIGTERM) is _stay:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        restore()

    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=in_child)


def run(channel: ServerChannel) -> None:
    """Loads the model that the server names first, and answers batches."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    os.register_at_fork(after_in_child=channel.disown)
    let_forked_processes_end()
    try:
        _answer(channel)
    finally:
        # Tells the server that nothing more comes, even if the process does not end.
        channel.close()
        close_exporting()


def _answer(channel: ServerChannel) -> None:
    messages = channel.messages()
    load, _ = next(messages)
    assert isinstance(load, Load)  # noqa: S101 - the server's first message
    if load.rank:
        keep_answers_back(channel)
    started = time.perf_counter()
    if load.mode == ASYNC:
        _run_loop(_run_calls(load, channel, started))
        return
    with _reported(load, channel):
        handler, service = import_service(load)
    if handler.concurrency:
        run_fast_loop(_run_calls(load, channel, started, (handler, service)))
        return
    with _reported(load, channel):
        handler.initialize(service.context)
        check_device(handler, load)
    if load.rank:
        service.entry = excused(service.entry)
    loaded = _loaded(handler, load, service.context, started)
    channel.send(loaded)
    if load.mode == CONTINUOUS:
        service.connect(channel, channel.look)
        ContinuousBatch(service, channel).serve()
    elif loaded.pipelined:
        service.connect(channel)
        Pipeline(handler.instance, service, channel).serve(messages)
    else:
        # Ranks must stay in step, so none may react to cancellations.
        service.connect(channel, channel.look if load.ranks == 1 else None, channel.await_proceed)
        serve(messages, service, channel)


def _run_loop(calls: Coroutine[Any, Any, None]) -> None:
    import asyncio  # noqa: PLC0415 - a sixth of what other workers would import

    asyncio.run(calls)


def run_fast_loop(calls: Coroutine[Any, Any, None]) -> None:
    """Runs the calls by uvloop, if this environment has it; TorchServe's handlers expect asyncio's loop."""
    try:
        from uvloop import run as fast_run  # noqa: PLC0415 - as above; versions before 0.18 lack it
    except ImportError:
        _run_loop(calls)
    else:
        fast_run(calls)


async def _run_calls(
    load: Load, channel: ServerChannel, started: float, imported: tuple[LoadedHandler, Service] | None = None
) -> None:
    """Initialises the handler within the loop that its calls will run in, and answers requests."""
    from modelserver.engine.worker import asynchronous  # noqa: PLC0415

    with _reported(load, channel):
        handler, service = imported or import_service(load)
        asynchronous.check_asynchronous(handler.entry)
        asynchronous.use_gpu_in_threads()
        initialised = handler.initialize(service.context)
        if inspect.isawaitable(initialised):
            await initialised
        # It may have loaded its model in another thread.
        enter_thread()
        check_device(handler, load)
    # The model lives as long as the process: it is not searched for garbage again and again.
    gc.collect()
    gc.freeze()
    channel.send(_loaded(handler, load, service.context, started))
    service.connect(channel)
    await asynchronous.AsyncCalls(service, channel).serve()
    if (close := getattr(handler.instance, "_ms_close", None)) is not None:
        await close()


@contextlib.contextmanager
def _reported(load: Load, channel: ServerChannel) -> Iterator[None]:
    """Reports to the server why the handler cannot be loaded, and ends the process."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        hint = hint_for(error)
        print_failure(error, hint=hint)
        status = 507 if is_out_of_memory(error) else 500
        variables = error.variables if isinstance(error, LoadAgain) else {}
        message = explain_failure(error, Path(load.model_dir), hint)
        channel.send(LoadFailed(message, status, is_permanent(error), variables))
        os._exit(1)


def _loaded(handler: LoadedHandler, load: Load, context: Context, started: float) -> Loaded:
    instance, splits = handler.instance, handler.built_in or load.envelope in TAKES_INSTANCES
    seconds = time.perf_counter() - started
    pipelined = load.ranks == 1 and not load.mode and not load.envelope and can_prefetch(handler)
    return Loaded(
        splits,
        seconds,
        tuple(context._ms_warnings),
        pipelined,
        context._ms_precision,
        annotations_of(instance),
        handler.device,
        handler.concurrency,
        getattr(instance, "_ms_endpoints", {}),
        tuple(getattr(instance, "_ms_adapters", ())),
    )


def check_device(handler: LoadedHandler, load: Load) -> None:
    """Raises GpuNotUsable for a model that must be on its GPU and is on the CPU."""
    if load.gpu_required and load.gpu_id is not None and handler.device == "cpu":
        raise GpuNotUsable(
            f"GPU {load.gpu_id} was assigned (require_gpu=true), and the handler computes on the CPU;"
            " deviceType: cpu in model-config.yaml keeps a model off the GPUs"
        )


def annotations_of(instance: Any) -> Annotations | None:
    """What the annotations of a ``modelserver.Handler``, or a model file, say; None if there is nothing."""
    signature = getattr(instance, "_ms_signature", lambda: None)()
    if signature is None:
        return None
    return Annotations(_side(signature.inputs), _side(signature.outputs))


def _side(described: Any) -> Side:
    return Side(
        [OutputSpec(*tensor) for tensor in described.tensors],
        described.media,
        described.schema or {},
        described.schemas,
    )


def serve(messages: Any, service: Service, channel: ServerChannel) -> None:
    """Answers one batch at a time."""
    for message, tail in messages:
        if isinstance(message, Predict):
            if not channel.begin(message.sequence):
                continue
            work = service.take(message, tail)
            seconds = timed(lambda: service.run(work))  # noqa: B023 - called before the next turn
            channel.send(*service.finish(work, seconds))
            leave_if_broken(service)
        elif isinstance(message, Cancelled):
            service.cancel(message)
        elif isinstance(message, Ping):
            channel.send(Pong())
        elif isinstance(message, Stop):
            return


def import_service(load: Load) -> tuple[LoadedHandler, Service]:
    """Imports the handler with the model directory as current directory (reference 12.1), without
    initialising it.
    """
    model_dir = Path(load.model_dir)
    os.chdir(model_dir)
    # `-m` put the start directory there; the archive's own modules must come first.
    sys.path[0] = str(model_dir)
    offer_ts_names(1)
    metrics = HandlerMetrics(load.model_name)
    send_emissions_to(metrics.receive)
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
    # As the server uses them; TorchServe's workers read other settings, which could differ.
    context.header_key_sequence_id = load.sequence_headers.id
    context.header_key_sequence_start = load.sequence_headers.start
    context.header_key_sequence_end = load.sequence_headers.end
    context._ms_begin(BatchState())
    handler = load_handler(load.handler, model_dir)
    if load.tracer:
        open_exporting(load.tracer)
    if load.mode and load.envelope:
        raise HandlerNotUsable(
            f"The envelope {load.envelope!r} cannot be used with continuousBatching or asyncCommunication."
        )
    entry = ENVELOPES[load.envelope](handler.entry).handle if load.envelope else handler.entry
    service = Service(entry, context, load, metrics)
    service.method = getattr(handler.instance, "_ms_answering", service.method)
    service.lists = bool(getattr(handler.instance, "_ms_lists", False)) and not load.envelope
    return handler, service
