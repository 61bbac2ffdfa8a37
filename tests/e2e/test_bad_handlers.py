"""Handlers that misbehave while they load or answer: a clear error, and nothing else is touched."""

import psutil
import pytest
from tests.e2e.serving import archived, wait_until


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    """A store that the tests add their archives to; and a handler that does nothing wrong."""
    store = tmp_path_factory.mktemp("bad")
    archived(store, "good", "def handle(data, context):\n    return ['good'] * len(data or ())\n")
    archived(store, "deeds", DEEDS)
    return store


@pytest.fixture(scope="module")
def server(shared_server):
    return shared_server.registered("good.mar").registered("deeds.mar", batch_size=4, max_batch_delay=50)


def is_untouched(server):
    return server.predict("good").text == "good" and server.inference.get("/ping").status_code == 200


CLASS = """
import os, sys
{imported}

class Handler:
    def __init__(self):
        {made}
    def initialize(self, context):
        {initialised}
    def handle(self, data, context):
        return ["served"] * len(data)
"""


def in_step(step, deed):
    return CLASS.format(**{**dict.fromkeys(("imported", "made", "initialised"), "pass"), step: deed})


UNLOADABLE = {
    "raises": (in_step("imported", "raise LookupError('no such luck')"), "LookupError: no such luck"),
    "exits": (in_step("made", "sys.exit(5)"), "sys.exit(5)"),
    "ends": (in_step("initialised", "os._exit(6)"), "exited with status 6"),
    "interrupted": (in_step("initialised", "raise KeyboardInterrupt"), "was killed by SIGINT"),
    "no_file": (in_step("initialised", "print('about to open it'); open('weights.bin')"), "about to open it"),
    "no_module": ("import surely_not_installed\n", "No module named 'surely_not_installed'"),
    "syntax": ("def handle(data, context)\n    return data\n", "SyntaxError"),
    "empty": ("", "Expected only one class in custom service code or a function entry point"),
    "no_context": ("class A:\n    def initialize(self):\n        pass\n    handle = None\n", "initialize()"),
    "path_cleared": ("import sys\nsys.path.clear()\nimport colorsys\n", "No module named 'colorsys'"),
    "recursion": ("def handle(data, context):\n    return handle(data, context)\n", "RecursionError"),
    "endless": ("import os\nos.write(1, b'\\xff' * 9_000_000)\nraise ValueError('x' * 900_000)", "Error: x"),
    "channel_closed": ("import os\nos.closerange(3, 200)\nraise ValueError\n", "worker"),
}


def test_handler_that_cannot_load_fails_its_registration(server, model_store, pool):
    """The message has archive, cause and last output; the model is not left behind (F40, F44, F45)."""
    for name, (source, _) in UNLOADABLE.items():
        archived(model_store, name, source)
    responses = pool.map(lambda name: server.register(f"{name}.mar", startup_timeout=20), UNLOADABLE)
    for response, (name, (_, cause)) in zip(responses, UNLOADABLE.items(), strict=True):
        message = response.json()["message"]

        assert response.status_code == 500
        assert message.startswith(f"Failed to start workers for model {name}")
        assert cause in message
        assert len(message) < 100_000
        assert server.management.get(f"/models/{name}").status_code == 404
    assert is_untouched(server)


def test_deeds_while_loading_do_no_harm(server, model_store):
    """Output, directory, ignored signals and threads left behind keep its process from nothing (F44, F45)."""
    deeds = [
        "import signal, threading",
        "print('y' * 20_000_000)",
        "os.write(1, b'\\xff' * 3_000_000)",
        "os.chdir('/')",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "threading.Thread(target=print, args=('late',)).start()",
    ]
    archived(model_store, "harmless", in_step("initialised", "; ".join(deeds)))
    server.registered("harmless.mar")

    assert server.predict("harmless").text == "served"
    assert is_untouched(server)
    server.unregister("harmless")


def test_traceback_is_on_the_servers_own_output(server, model_store):
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
        return [{"pid": os.getpid()} for _ in rows]

    def preprocess(self, rows):
        self.do("preprocess", rows)

    def inference(self, rows):
        self.do("inference", rows)

    def postprocess(self, rows):
        self.do("postprocess", rows)

    def do(self, step, rows):
        for row in rows:
            if row.get("step", "inference") == step and "do" in row:
                getattr(self, row["do"])()

    def fail(self):
        raise LookupError("as it was told")

    def strange_error(self):
        class Strange(Exception):
            error_code = property(lambda self: 1 / 0)
            def __str__(self):
                raise ValueError
        raise Strange

    def endless_error(self):
        raise ValueError("x" * 5_000_000)

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
'''


@pytest.fixture
def deeds(server):
    server.wait_ready("deeds")
    return server


def failures_of(model, server, start):
    """What the log has on the standard error of a model's workers since then."""
    lines = server.home.log("model_log.log")[start:].splitlines()
    return "\n".join(line for line in lines if f"-{model}_1.0-stderr" in line)


@pytest.mark.parametrize(
    ("step", "deed", "cause"),
    [
        ("preprocess", "fail", "LookupError: as it was told"),
        ("inference", "strange_error", "Strange"),
        ("postprocess", "endless_error", "ValueError: xxx"),
    ],
)
def test_exception_fails_its_request_only(deeds, step, deed, cause):
    """The log says of which model, in which step and why; the worker stays (F18)."""
    before = deeds.predict("deeds", {}).json()["pid"]
    seen = len(deeds.home.log("model_log.log"))
    response = deeds.predict("deeds", {"step": step, "do": deed})

    assert response.status_code == 503
    assert response.json()["message"].startswith("Prediction failed: ")
    assert deeds.predict("deeds", {}).json()["pid"] == before
    assert is_untouched(deeds)
    wait_until(lambda: cause in failures_of("deeds", deeds, seen), "the failure is in the log")
    assert f", in {step}" in failures_of("deeds", deeds, seen)


@pytest.mark.parametrize(
    "chosen",
    [
        ("print_much", "write_descriptors", "read_input", "close_output"),
        ("no_output", "ignore_signals", "leave_group", "failing_thread", "remove_model"),
        ("change_surroundings",),
    ],
    ids=["outputs", "signals", "surroundings"],
)
def test_worker_serves_on_whatever_its_handler_changes(deeds, chosen):
    """It serves this batch and the next; a line without an end is cut in the log (F44, F45)."""
    for deed in chosen:
        first = deeds.predict("deeds", {"do": deed})

        assert first.status_code == 200
        assert deeds.predict("deeds", {}).json()["pid"] == first.json()["pid"]
        assert is_untouched(deeds)
    lines = deeds.home.log("model_log.log").splitlines()
    assert max((len(line) for line in lines if "yyy" in line), default=0) < 10_000
    _renew(deeds)


def test_broken_builtins_fail_until_the_worker_is_replaced(deeds):
    deeds.predict("deeds", {"do": "break_builtins"})

    assert is_untouched(deeds)
    _renew(deeds)
    assert deeds.predict("deeds", {}).status_code == 200


def test_forked_child_that_comes_back_sends_nothing(deeds):
    """A child that goes on as if it were the worker takes no request and sends no answer (F45)."""
    before = deeds.predict("deeds", {}).json()["pid"]
    responses = [deeds.predict("deeds", {"do": deed}) for deed in ("fork", "pause") * 3]

    assert [(each.status_code, each.json()["pid"]) for each in responses] == [(200, before)] * 6
    assert deeds.describe("deeds")["workers"][0]["pid"] == before
    deeds.home.wait_for_log("returned from the handler's call", "model_log.log")
    assert is_untouched(deeds)


@pytest.mark.slow  # the worker is given five seconds to leave
def test_worker_that_hangs_at_its_exit_is_ended(deeds):
    """What waits in a thread or at exit does not keep a worker that is scaled away (F45)."""
    pid = deeds.predict("deeds", {"do": "hang_at_exit"}).json()["pid"]
    response = deeds.management.put("/models/deeds?min_worker=0&synchronous=true")
    assert response.status_code == 200, response.text

    wait_until(lambda: not psutil.pid_exists(pid), "it ends", 10)
    _renew(deeds)


def _renew(server):
    """Gives the model a fresh worker in a fresh folder."""
    server.unregister("deeds")
    server.registered("deeds.mar", batch_size=4, max_batch_delay=50)
