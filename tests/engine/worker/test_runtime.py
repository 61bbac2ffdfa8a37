import asyncio
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import msgspec
import pytest
import uvloop
from tests.engine.worker.channels import Channel

from modelserver.engine.wire import messages as wire
from modelserver.engine.worker.runtime import (
    check_device,
    import_service,
    run_fast_loop,
    serve,
)
from modelserver_handlers.answers import OCTETS
from modelserver_handlers.errors import GpuNotUsable
from modelserver_handlers.loader import HandlerNotUsable


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    """A model directory in which a service may be loaded: what that changes in the process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "runtime_handler", raising=False)
    return tmp_path


HANDLER = """
class Echo:
    def handle(self, data, context):
        context.metrics.add_counter("calls", 1)
        return [bytes(row["body"]) + context.get_request_id(i).encode() for i, row in enumerate(data)]
"""


def load_service(model_dir, source, **fields):
    """The handler, initialised, and what calls it."""
    (model_dir / "runtime_handler.py").write_text(source)
    handler, service = import_service(
        wire.Load("m", "1.0", str(model_dir), "runtime_handler.py", 4, **fields)
    )
    handler.initialize(service.context)
    return handler, service


def test_messages_are_served_until_a_stop(model_dir):
    _, service = load_service(model_dir, HANDLER)
    assert service.context.metrics.model_name == "m"

    channel = Channel()
    rows = [wire.Row("one", 1), wire.Row("two", 2)]
    messages = [
        (wire.Ping(), memoryview(b"")),
        (wire.Predict(3, rows), memoryview(b"abb")),
        (wire.Stop(), memoryview(b"")),
    ]
    serve(iter([*messages, (wire.Ping(), memoryview(b""))]), service, channel)
    (pong, _), (result, bodies) = channel.sent
    assert pong == wire.Pong()
    assert result.sequence == 3
    assert result.answers == [wire.Answer(4, 200, OCTETS), wire.Answer(5, 200, OCTETS)]
    assert bodies == [b"aone", b"bbtwo"]
    assert [m.request_id for m in result.metrics] == ["one,two"]
    assert result.handler_time > 0.0


@pytest.mark.parametrize("mode", [wire.CONTINUOUS, wire.ASYNC])
def test_envelopes_are_for_batches_of_whole_requests(model_dir, mode):
    with pytest.raises(HandlerNotUsable, match="envelope 'body' cannot be used with continuousBatching"):
        load_service(model_dir, HANDLER, envelope="body", mode=mode)


@pytest.mark.parametrize(
    ("source", "method"),
    [
        ("import modelserver\nclass H(modelserver.Handler):\n    def predict(self, rows): ...\n", "predict"),
        ("def shout(rows: list[str]) -> list[str]: ...\n", "shout"),
        ("def handle(data, context): ...\n", "handle"),
    ],
)
def test_the_authors_method_is_known(model_dir, source, method):
    assert load_service(model_dir, source)[1].method == method


def test_batches_that_were_taken_back_or_cancelled_change_no_other(model_dir):
    """A cancellation may come after the answer that it was for."""
    _, service = load_service(model_dir, HANDLER)
    channel = Channel()
    channel.taken_back = {3}
    messages = [
        (wire.Predict(3, [wire.Row("one", 1)]), b"a"),
        (wire.Predict(4, [wire.Row("two", 1)]), b"b"),
        (wire.Cancelled(4, [0]), b""),
        (wire.Predict(5, [wire.Row("three", 1)]), b"c"),
    ]
    serve(((message, memoryview(tail)) for message, tail in messages), service, channel)

    assert [bodies for _, bodies in channel.sent] == [[b"btwo"], [b"cthree"]]


@pytest.mark.parametrize(
    ("installed", "package"),
    [(uvloop, "uvloop"), (None, "asyncio.unix_events"), (ModuleType("uvloop"), "asyncio.unix_events")],
    ids=["yes", "no", "older than 0.18"],
)
def test_calls_at_the_same_time_are_run_by_uvloop_if_it_is_installed(installed, package, monkeypatch):
    loops = []

    async def calls():
        loops.append(type(asyncio.get_running_loop()).__module__)

    monkeypatch.setitem(sys.modules, "uvloop", installed)
    run_fast_loop(calls())

    assert loops == [package]


POISONED = """
class Poisoned:
    gpus = None

    def handle(self, data, context):
        if data[0]["body"] == b"p":
            self.gpus.fail()
        self.gpus.launch()
        return ["fine"]
"""


def test_a_process_whose_gpu_is_broken_ends_after_its_answer(model_dir, gpus, leaves):
    """What waits for it has not begun, so that it can run elsewhere (F75)."""
    loaded, service = load_service(model_dir, POISONED)
    loaded.instance.gpus = gpus
    channel = Channel()
    service.connect(channel)
    messages = [
        (wire.Predict(n, [wire.Row("id", 1)]), memoryview(body)) for n, body in enumerate((b"a", b"p", b"b"))
    ]

    with pytest.raises(leaves):
        serve(iter(messages), service, channel)
    (first, _), (broken, _), (second, _) = channel.sent

    assert isinstance(broken, wire.Broken)
    assert [result.answers[0].status for result in (first, second)] == [200, 500]
    assert channel.started == [0, 1]
    assert channel.is_closed


FORKS = """
import os, signal, sys
from modelserver.engine.worker.runtime import be_left_alone, let_forked_processes_end

be_left_alone()
let_forked_processes_end()
SIGTERM = {signal.SIGTERM}

def blocked():
    return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())

def forked(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def end():
    os.kill(os.getpid(), signal.SIGTERM)

def supervise():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    os._exit(forked(end))

def nest():
    os._exit(-forked(end))

end()
print("child", forked(end))
print("grandchild", forked(nest))
print("grandchild of a supervisor", forked(supervise))
print("worker", blocked())
signal.pthread_sigmask(signal.SIG_BLOCK, SIGTERM)
print("child of a handler that blocks", forked(lambda: os._exit(blocked())))
print("handler that blocks", blocked())
"""


def test_sigterm_ends_forked_processes_that_do_not_react_otherwise():
    ran = subprocess.run(
        [sys.executable, "-c", FORKS], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )

    assert ran.stdout.splitlines() == [
        "child -15",
        "grandchild 15",
        "grandchild of a supervisor 7",
        "worker False",
        "child of a handler that blocks 1",
        "handler that blocks True",
    ]


def test_workers_import_little():
    """Modules that few workers need are imported by those only: each of hundreds of starts would pay."""
    code = "import sys, modelserver.engine.worker.runtime; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"asyncio", "importlib.metadata", "numpy", "torch", "yaml"} & set(run.stdout.split())


def test_a_model_must_be_on_the_gpu_if_one_is_required():
    load = wire.Load("m", "1.0", "/", "h.py", 4, gpu_id=1, gpu_required=True)
    on_cpu, on_gpu, unknown = (SimpleNamespace(device=device) for device in ("cpu", "cuda:1", ""))

    with pytest.raises(GpuNotUsable, match=r"GPU 1 was assigned .* deviceType: cpu in model-config.yaml"):
        check_device(on_cpu, load)
    for handler, fine in (
        (on_gpu, load),
        (unknown, load),
        (on_cpu, msgspec.structs.replace(load, gpu_required=False)),
        (on_cpu, msgspec.structs.replace(load, gpu_id=None)),
    ):
        check_device(handler, fine)
