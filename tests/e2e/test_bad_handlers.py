"""Handlers that misbehave while they load or answer: a clear error, and nothing else is touched."""

from __future__ import annotations

import psutil
import pytest
from tests.e2e.serving import archived, wait_until
from tests.waiting import is_alive


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    """A store that the tests add their archives to; and a handler that does nothing wrong."""
    store = tmp_path_factory.mktemp("bad")
    archived(store, "good", "def handle(data, context):\n    return ['good'] * len(data or ())\n")
    archived(store, "deeds", DEEDS)
    return store


@pytest.fixture(scope="module")
def server(shared_server):
    """With a good model that must not notice the others."""
    return shared_server.registered("good.mar").registered("deeds.mar", batch_size=4, max_batch_delay=50)


def is_untouched(server):
    """The good model is served by the worker it had, and the server says that it is healthy."""
    return server.predict("good").text == "good" and server.inference.get("/ping").status_code == 200


# While they load

CLASS = """
import os, sys

class Handler:
    def __init__(self):
        {made}
    def initialize(self, context):
        {initialised}
    def handle(self, data, context):
        return data
"""


def in_step(deed, step):
    """The source of a handler that does something when it is imported, made or initialised."""
    steps = dict.fromkeys(("made", "initialised"), "pass") | ({} if step == "imported" else {step: deed})
    return (f"import os, sys\n{deed}\n" if step == "imported" else "") + CLASS.format(**steps)


@pytest.mark.parametrize("step", ["imported", "made", "initialised"])
@pytest.mark.parametrize(
    ("deed", "cause"),
    [
        ("raise LookupError('no such luck')", "LookupError: no such luck"),
        ("sys.exit(5)", "sys.exit(5)"),
        ("os._exit(6)", "exited with status 6"),
        pytest.param("raise KeyboardInterrupt", "was killed by SIGINT", marks=pytest.mark.slow),
    ],
    ids=["raise", "sys.exit", "os._exit", "KeyboardInterrupt"],
)
def test_failure_in_each_step_of_loading(server, model_store, deed, cause, step):
    """The registration fails with archive, cause and, unless the process just ends, place (F40, F45)."""
    name = f"load_{step}_{abs(hash(deed))}"
    archived(model_store, name, in_step(deed, step))
    answer = server.register(f"{name}.mar")
    message = answer.json()["message"]

    assert answer.status_code == 500
    assert message.startswith(f"Failed to start workers for model {name}")
    assert cause in message
    place = {"imported": "in <module>", "made": "in __init__", "initialised": "in initialize"}[step]
    assert place in message or "_exit" in deed
    assert server.management.get(f"/models/{name}").status_code == 404
    assert is_untouched(server)


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("", "Expected only one class in custom service code or a function entry point"),
        ("class A:\n    pass\n", "Expect handle method in class A"),
        ("class A:\n    def __init__(self, size):\n        pass\n    handle = None\n", "size"),
        ("class A:\n    def initialize(self):\n        pass\n    handle = None\n", "initialize()"),
        ("def handle(data):\n    return data\n", "handle()"),
        ("from ts.torch_handler.vllm_handler import VLLMHandler\n", "modelserver does not offer"),
        ("import ts.nothing\n", "No module named 'ts.nothing'"),
        ("import sys\nsys.path.clear()\nimport colorsys\n", "No module named 'colorsys'"),
        ("def handle(data, context):\n    return handle(data, context)\n", "RecursionError"),
        ("import os\nos.write(1, b'\\xff' * 10_000_000)\nraise ValueError('x' * 1_000_000)", "ValueError: x"),
        ("import os\nos.closerange(3, 200)\nraise ValueError\n", "worker"),
    ],
    ids=[
        "empty",
        "no handle",
        "constructor with arguments",
        "initialize without context",
        "handle without context",
        "not offered",
        "unknown",
        "path cleared",
        "recursion",
        "endless texts",
        "channel closed",
    ],
)  # fmt: skip
def test_handlers_that_cannot_be_loaded(server, model_store, source, cause, request):
    """Each fails its registration with the archive's name and the cause, in a sane size (F40, F44)."""
    name = "unloadable_" + request.node.callspec.id.replace(" ", "_")
    archived(model_store, name, source)
    answer = server.register(f"{name}.mar", startup_timeout=10)
    message = answer.json()["message"]

    assert answer.status_code == 500
    assert name in message
    assert cause in message
    assert len(message) < 100_000
    assert is_untouched(server)


@pytest.mark.parametrize(
    "deed",
    [
        "print('y' * 20_000_000)",
        "os.write(1, b'\\xff' * 3_000_000)",
        "os.chdir('/')",
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "import threading; threading.Thread(target=print, args=('late',)).start()",
    ],
    ids=["prints", "descriptor", "directory", "signals", "thread"],
)
def test_deeds_while_loading_that_do_no_harm(server, model_store, deed, request):
    """What a handler does to its process when it loads keeps it from nothing (F44, F45)."""
    name = f"harmless_{request.node.callspec.id}"
    archived(model_store, name, in_step(deed, "initialised").replace("return data", "return ['served']"))
    server.registered(f"{name}.mar")

    assert server.predict(name).text == "served"
    assert is_untouched(server)
    server.unregister(name)


def test_fork_while_loading(server, model_store):
    """A child that a handler leaves behind when it loads neither answers nor outlives the worker (F45)."""
    source = """
    import os, time
    child = os.fork()
    if child == 0:
        time.sleep(600)
    def handle(data, context):
        return None if data is None else [str(child)] * len(data)
    """
    archived(model_store, "forking", source)
    child = int(server.registered("forking.mar").predict("forking").text)

    assert psutil.pid_exists(child)
    server.unregister("forking")
    wait_until(lambda: not is_alive(child), "the child ends with its worker")


# While they answer

DEEDS = '''
import atexit, builtins, gc, json, os, signal, sys, threading, time
from ts.context import Context

class Deeds:
    """Does in each step what the request says: {"step": ..., "do": ...}."""

    def initialize(self, context: Context):
        self.context = context

    def handle(self, data, context):
        rows = [row["body"] for row in data]
        self.preprocess(rows)
        self.inference(rows)
        self.postprocess(rows)
        answers = [{"pid": os.getpid()} for _ in rows]
        returned = next((row["return"] for row in rows if "return" in row), None)
        return answers if returned is None else RETURNS[returned](answers)

    def preprocess(self, rows):
        self.do("preprocess", rows)

    def inference(self, rows):
        self.do("inference", rows)

    def postprocess(self, rows):
        self.do("postprocess", rows)

    def do(self, step, rows):
        for row in rows:
            if row.get("step") == step:
                getattr(self, row["do"])()

    def fail(self):
        raise LookupError("as it was told")

    def interrupt(self):
        raise KeyboardInterrupt

    def exit(self):
        sys.exit(7)

    def strange_error(self):
        class Strange(Exception):
            error_code = property(lambda self: 1 / 0)
            def __str__(self):
                raise ValueError
        raise Strange

    def endless_error(self):
        raise ValueError("x" * 5_000_000)

    def end_generator(self):
        raise GeneratorExit

    def print_much(self):
        print("y" * 20_000_000)
        sys.stdout.write("z\\n" * 50_000)

    def write_descriptors(self):
        os.write(1, b"\\xff\\x00 straight to the descriptor\\n")
        os.write(2, b"\\x00" * 100_000)

    def close_output(self):
        sys.stdout.close()
        os.close(1)
        os.close(2)

    def no_output(self):
        sys.stdout = sys.stderr = None

    def read_input(self):
        assert sys.stdin.read() == ""

    def ignore_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)

    def leave_group(self):
        os.setpgid(0, 0) if os.getpgid(0) != os.getpid() else None

    def change_surroundings(self):
        os.chdir("/")
        os.environ.clear()
        os.umask(0o777)
        sys.path.clear()
        gc.disable()
        sys.setrecursionlimit(150)

    def hang_at_exit(self):
        atexit.register(time.sleep, 600)
        threading.Thread(target=time.sleep, args=(600,)).start()

    def failing_thread(self):
        thread = threading.Thread(target=self.fail)
        thread.start()
        thread.join()

    def break_builtins(self):
        builtins.print = builtins.len = None

    def remove_model(self):
        import shutil
        shutil.rmtree(self.context.system_properties["model_dir"], ignore_errors=True)

    def pause(self):
        time.sleep(0.05)

    def fork(self):
        if os.fork() == 0:
            return

RETURNS = {
    "few": lambda answers: answers[:-1],
    "many": lambda answers: answers * 2,
    "none": lambda answers: None,
    "generator": lambda answers: (answer for answer in answers),
    "dict": lambda answers: {"answers": answers},
    "text": lambda answers: "x" * len(answers),
    "class": lambda answers: list,
}
'''


@pytest.fixture
def deeds(server):
    """The model that does what it is told, with a worker that is ready."""
    server.wait_ready("deeds")
    return server


@pytest.mark.parametrize("step", ["preprocess", "inference", "postprocess"])
@pytest.mark.parametrize("deed", ["fail", "strange_error", "endless_error"])
def test_exceptions_in_each_step(deeds, deed, step):
    """The request fails, the log says of which model, in which step and why; the worker stays (F18)."""
    before = deeds.predict("deeds", {}).json()["pid"]
    seen = len(deeds.home.log("model_log.log"))
    answer = deeds.predict("deeds", {"step": step, "do": deed})

    assert answer.status_code == 503
    assert answer.json()["message"].startswith("Prediction failed: ")
    assert deeds.predict("deeds", {}).json()["pid"] == before
    assert is_untouched(deeds)
    cause = {
        "fail": "LookupError: as it was told",
        "strange_error": "Strange",
        "endless_error": "ValueError: xxx",
    }
    told = wait_until(lambda: said_by("deeds", deeds, seen, cause[deed]), "the failure is in the log")
    assert f", in {step}" in told


def said_by(model, server, start, cause):
    """What the log has of a model's workers since then, once the cause is among it."""
    lines = server.home.log("model_log.log")[start:].splitlines()
    told = "\n".join(line for line in lines if f"-{model}_1.0-stderr" in line)
    return told if cause in told else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "end"),
    [
        ("exit", "exited with status 7"),
        ("interrupt", "killed by SIGINT"),
        ("end_generator", "exited with status"),
    ],
)
@pytest.mark.parametrize("step", ["preprocess", "postprocess"])
def test_exits_in_each_step(deeds, deed, end, step):
    """The worker ends, its request gets an error, describe says why, another worker takes over (F45)."""
    answer = deeds.predict("deeds", {"step": step, "do": deed})

    assert (answer.status_code, answer.json()["message"]) == (500, "Worker died.")
    failure = wait_until(lambda: deeds.describe("deeds")["workers"][0].get("failure"), "the reason is known")
    assert end in failure
    assert deeds.predict("deeds", {}).status_code == 200
    assert is_untouched(deeds)


@pytest.mark.parametrize("returned", ["few", "many", "none", "generator", "dict", "text", "class"])
def test_wrong_returns(deeds, returned):
    """Anything but a list of one answer per request fails the request, the log says what it was, and the
    worker stays (F19).
    """
    before = deeds.predict("deeds", {}).json()["pid"]
    seen = len(deeds.home.log("model_log.log"))
    answer = deeds.predict("deeds", {"return": returned})

    assert answer.status_code == 503
    assert answer.json()["message"].partition(":")[0] in {
        "Invalid model predict output", "number of batch response mismatched"
    }  # fmt: skip
    assert deeds.predict("deeds", {}).json()["pid"] == before
    kind = {"none": "NoneType", "text": "str", "class": "type"}.get(returned, returned)
    cause = {"few": "the handler returned 0", "many": "the handler returned 2"}.get(
        returned, f"The handler returned {kind}, a list is needed."
    )
    wait_until(lambda: said_by("deeds", deeds, seen, cause), "the failure is in the log")


def test_failures_on_kserve_routes(deeds):
    """V1 clients are told the exception, or what was returned, in a sane size (F18, F19)."""
    causes = {
        "LookupError : as it was told": {"step": "inference", "do": "fail"},
        "ValueError : xxxx": {"step": "inference", "do": "endless_error"},
        "The handler returned NoneType, a list is needed.": {"return": "none"},
    }
    for cause, body in causes.items():
        answer = deeds.v1("deeds", [{"body": body}])
        assert answer.status_code == 500
        assert answer.json()["error"].startswith(cause)
        assert len(answer.content) < 10_000


@pytest.mark.parametrize(
    "deed",
    [
        "print_much",
        "write_descriptors",
        "close_output",
        "no_output",
        "read_input",
        "ignore_signals",
        "leave_group",
        "change_surroundings",
        "failing_thread",
        "remove_model",
    ],
)
def test_changed_surroundings(deeds, deed):
    """What a handler does to its process does not keep the worker from this batch and the next (F45)."""
    first = deeds.predict("deeds", {"step": "inference", "do": deed})

    assert first.status_code == 200
    assert deeds.predict("deeds", {}).json()["pid"] == first.json()["pid"]
    assert is_untouched(deeds)
    _renewed(deeds)


def test_broken_builtins(deeds):
    """A worker whose Python is broken fails its requests until it is replaced; others do not notice."""
    deeds.predict("deeds", {"step": "inference", "do": "break_builtins"})

    assert is_untouched(deeds)
    _renewed(deeds)
    assert deeds.predict("deeds", {}).status_code == 200


def test_a_forked_child_that_comes_back(deeds):
    """A child that goes on as if it were the worker takes no request and sends no answer (F45)."""
    before = deeds.predict("deeds", {}).json()["pid"]
    answers = [deeds.predict("deeds", {"step": "inference", "do": deed}) for deed in ("fork", "pause") * 3]

    assert [(answer.status_code, answer.json()["pid"]) for answer in answers] == [(200, before)] * 6
    assert deeds.describe("deeds")["workers"][0]["pid"] == before
    deeds.home.wait_for_log("returned from the handler's call", "model_log.log")
    assert is_untouched(deeds)


@pytest.mark.slow
def test_worker_that_hangs_at_its_exit_is_ended(deeds):
    """What waits in a thread or at exit does not keep a worker that is scaled away (F45)."""
    pid = deeds.predict("deeds", {"step": "inference", "do": "hang_at_exit"}).json()["pid"]
    answer = deeds.management.put("/models/deeds?min_worker=0&synchronous=true")
    assert answer.status_code == 200, answer.text

    wait_until(lambda: not psutil.pid_exists(pid), "it ends", 10)
    _renewed(deeds)


def _renewed(server):
    """Gives the model a fresh worker in a fresh folder."""
    server.unregister("deeds")
    server.registered("deeds.mar", batch_size=4, max_batch_delay=50)


def test_tracebacks_are_on_the_servers_own_output(server, model_store):
    """Who looks at ts_log, or at the console only (``docker logs``), sees once where a handler failed."""
    source = "def handle(data, context):\n    raise ImportError('seen from \\x1b[1mafar\\x1b[0m')\n"
    archived(model_store, "traced", source)
    server.register("traced.mar", synchronous="true")
    failure = "could not load its model: ImportError: seen from afar"
    wait_until(lambda: failure in server.home.output(), "the failure is printed")
    for written in (server.home.log(), server.home.output()):
        lines = [line.strip() for line in written.splitlines() if "raise ImportError('seen" in line]

        assert written.count(failure) == 1
        assert len(lines) == 1
        assert "Its last output" not in server.home.output()
