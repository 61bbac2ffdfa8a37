"""The code blocks of the README and of docs/ as they stand: handlers answer, commands run, files are read.

Each block is run or read by a test below, or listed in ``NOT_RUN`` with the reason.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from PIL import Image
from tests.e2e.blocks import BLOCKS, of_language
from tests.e2e.serving import ROOT, Home, archived, free_port, output_of, wait_until
from tests.e2e.test_tutorials import HUB_TUTORIALS, TUTORIALS

from modelserver.engine.telemetry.metrics_config import parse_metrics_config
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.load import load_settings
from modelserver.models.settings.settings import KEYS
from modelserver.tools import COMMANDS
from modelserver.tools.archiver import make_parser

# Why a block is not run here; where another test runs it, that test's file, which names the page.
NOT_RUN = {
    "docs/handlers.md: Run, check and pack it: sh 1": "tests/e2e/test_serve.py serves others with --reload",
    "docs/operations.md: Events: sh 1": "the second follows for ever",
    "README.md: Serve a script: sh 2": "tests/e2e/test_tutorials.py",
    "README.md: Start: sh 1": "installs torch; its last command starts the server of the other blocks",
    "README.md: Coming from TorchServe: sh 1": "one is TorchServe's command; tests/test_readme.py compares",
    "README.md: Run the tests: sh 1": "runs all tests; tests/test_readme.py reads it",
    "README.md: Run the tests: sh 2": "runs all tests; tests/test_readme.py reads it",
    "docs/check.md: What it finds: python 1": "tests/tools/doctor/test_page.py",
    "docs/check.md: A client for tests of your own: python 1": "tests/tools/doctor/test_page.py",
    "docs/build.md: Build a container image of one model: sh 1": "tests/e2e/test_build.py",
    "docs/cluster.md: A laptop with three nodes: sh 2": "needs the cluster of the block before",
    "docs/docker.md: Arguments and settings: dockerfile 1": "there is no Docker here",
    "docs/docker.md: Build arguments: dockerfile 1": "there is no Docker here",
    "docs/serve.md: Tables: sh 1": "tests/handlers/test_tabular.py",
    "docs/extending.md: The extension: python 1": "tests/e2e/test_extending.py",
    "docs/extending.md: The row: python 1": "tests/e2e/test_extending.py",
    "docs/language-models.md: A chat in a few lines: python 1": "tests/e2e/test_openai.py",
    "docs/language-models.md: A chat in a few lines: python 2": "tests/e2e/test_openai.py",
    "docs/language-models.md: vLLM: sh 1": "installs vLLM, and needs the hub",
    "docs/language-models.md: Memory: json 1": "tests/tools/test_sizing.py",
    "docs/language-models.md: Memory: sh 1": "tests/tools/test_sizing.py",
    "docs/hugging-face.md: Serve a model of the Hugging Face hub: sh 1": "needs the hub",
    "docs/hugging-face.md: Serve a model of the Hugging Face hub: sh 2": "needs the hub",
    "docs/hugging-face.md: Tasks: sh 1": "NAME is a model of the reader",
    "docs/streaming.md: Answers in parts: python 1": "tests/e2e/test_streaming.py",
    "docs/streaming.md: Answers in parts: python 2": "tests/e2e/test_streaming.py",
    "docs/streaming.md: Continuous batching: python 1": "tests/e2e/test_concurrent_requests.py",
    "docs/asgi.md: Serve an ASGI application: python 1": "tests/e2e/test_asgi_applications.py",
    "docs/asgi.md: Serve an ASGI application: python 2": "tests/e2e/test_asgi_applications.py",
    "docs/streaming.md: Asynchronous handlers: python 1": "tests/e2e/test_concurrent_requests.py",
    "docs/runbook.md: First look: bash 1": "tests/e2e/test_events.py",
    "docs/many-models.md: Serve many models: bash 1": "tests/e2e/test_on_demand.py",
    "docs/many-models.md: By hand: bash 1": "tests/e2e/test_on_demand.py",
    "docs/migrating.md: Three steps: sh 1": "the server of the other blocks is started in this way",
    "docs/model-config.md: Several GPUs, several processes: python 1": "tests/e2e/test_distributed.py",
    "docs/payload-logging.md: Log payloads: sh 1": "needs somebody who takes the events",
    "docs/replay.md: The recorded batches: sh 1": "tests/e2e/test_replay.py does so with batches of more",
    "docs/serve.md: Serve a script or a model file: sh 1": "tests/e2e/test_serve.py",
    "docs/serve.md: In a registration: sh 1": "tests/e2e/test_serve.py",
    "docs/tracing.md: Trace requests: sh 1": "needs a collector",
    **{
        name: "tests/e2e/test_tutorials.py"
        for name, block in BLOCKS.items()
        if name.startswith((*TUTORIALS, *HUB_TUTORIALS)) and block.language in ("python", "sh")
    },
}

# Every block with a command that begins with one of these is not run, for this reason.
NOT_HERE = {
    "docker ": "there is no Docker here",
    "git worktree ": "compares with an old commit",
    "grpcurl ": "is no package",
    "kubectl ": "there is no cluster here; tests/deploy reads the manifests",
    "python -m benchmarks": "measures for minutes",
    "python3 -m pip ": "is for a machine without a package index",
    "ray start ": "starts a cluster; tests/e2e/test_ray.py starts its own",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to a block's handler, and its response. ``around`` is the code that makes a handler of a part
    of one, with ``{block}`` in its place.
    """

    body: bytes
    answer: bytes
    around: str = "{block}"


_JSON = {"Content-Type": "application/json"}
_FUNCTION = """
from ts.metrics.metric_type_enum import MetricTypes
def handle(data, context):
    if data is None:
        return None
    {block}
    return ["done"] * len(data)
"""
_METHOD = """
class torch:
    tensor = list
def parse(body):
    return int(body)
class Part:
    {block}
    def handle(self, data, context):
        self.context = context
        return self.preprocess(data) or ["refused"]
"""
_DESCRIBED = """
class Part:
    mapping = {{"a": 1}}
    {block}
    def handle(self, data, context):
        return [self.describe_handle()] * len(data)
"""
HANDLERS = {
    "README.md: Serve a script: python 1": Exchange(b"4", b"8.0"),
    "docs/serve.md: From Python: python 1": Exchange(b"4", b"8"),
    "docs/handlers.md: Annotated rows: python 1": Exchange(b"[1, 2, 4]", b"2.333"),
    "docs/handlers.md: A function: python 1": Exchange(b'"abc"', b"ABC"),
    "docs/handlers.md: Load a model: python 1": Exchange(b'"apple"', b"1.5"),
    "docs/handlers.md: Prepare rows, and reject bad ones: python 1": Exchange(
        b'{"article": "a", "count": 2}', b'{"total":5.0}'
    ),
    "docs/handlers.md: Content types of answers: python 1": Exchange(b'"hi"', b"<h1>hi</h1>"),
    "docs/handlers.md: Stream an answer: python 1": Exchange(b'"abc"', b"abc"),
    "docs/torchserve-handlers.md: A function: python 1": Exchange(b"[1]", b"1"),
    "docs/torchserve-handlers.md: Errors: python 1": Exchange(b"7", b"7", _METHOD),
    "docs/torchserve-handlers.md: Custom descriptions: python 1": Exchange(
        b"1", b'{"classes":1,"trained":"2024-05-01"}', _DESCRIBED
    ),
    "docs/torchserve-handlers.md: Custom metrics: python 1": Exchange(b"1", b"done", _FUNCTION),
    "docs/metrics.md: Metrics of handlers: python 1": Exchange(b"1", b"done", _FUNCTION),
    "docs/language-models.md: Embeddings and rankings: python 1": Exchange(
        b'"abba"', b"[2.0,0.0,0.0,0.0,0.0]"
    ),
    "docs/tracing.md: What is passed on: python 1": Exchange(b'{"a": 1}', b'{"rows":1}'),
}
DOUBLER = "docs/torchserve-handlers.md: A class: python 1"
SEQUENCES = (
    "docs/sequences.md: Keep the state of a sequence: python 1",
    "docs/sequences.md: Keep the state of a sequence: yaml 1",
)
SCALE, SCALED, SCALE_CLIENT = (
    f"docs/open-inference.md: Try it: {end}" for end in ("python 1", "json 1", "python 2")
)
GRPC_CLIENT = "docs/grpc.md: Try it: python 1"
ARCHIVER = "docs/migrating.md: Archives: python 1"
SMALL = "docs/gpu.md: Handlers of your own: python 1"
_PACKED = (
    "modelserver-archive --model-name resnet-152 --version 1.0 --handler examples/workflow/kind.py"
    " --export-path model_store"
)
_REMOVED = "curl -X DELETE localhost:8081/models/resnet-152"
# In this order, in one folder, with one server; and what comes before.
SHELL = {
    "README.md: Start: sh 2": "",
    "README.md: Predict: sh 1": "",
    "docs/migrating.md: Three steps: sh 2": "",
    "docs/migrating.md: Three steps: sh 3": "",
    "docs/migrating.md: Handlers: sh 1": "",
    **{f"docs/rollouts.md: Try it: sh {number}": "" for number in range(1, 5)},
    "docs/workflows.md: An example: sh 1": "",
    "docs/batching.md: Settings: sh 1": _PACKED,
    "docs/batching.md: Settings: sh 2": _REMOVED,
    "docs/batching.md: V1 requests: sh 1": "",
    "docs/operations.md: Changing a running model: sh 1": "",
    "docs/operations.md: Replacing a running model: sh 1": (
        "cp model_store/resnet-152.mar model_store/resnet-152-new.mar"
    ),
    "docs/operations.md: Autoscaling: sh 1": _REMOVED,
    "docs/operations.md: Autoscaling: sh 2": "",
    "docs/operations.md: Recycling workers: sh 1": "",
    "docs/operations.md: Restart all workers of a model: sh 1": "",
    "docs/operations.md: Logs: sh 1": "",
    "docs/open-inference.md: Try it: sh 3": "cp examples/mnist/digit-2.png kitten.jpg",
    "docs/many-models.md: Try it: sh 1": "",
    "docs/metrics.md: Metrics: sh 1": "",
    "docs/security.md: Tokens: sh 1": "TOKEN=choose-your-own",
    "docs/torchserve-handlers.md: Packing and testing: sh 1": "cp doubler.py my_handler.py",
    "docs/torchserve-handlers.md: Packing and testing: sh 2": "",
    "docs/open-inference.md: Try it: sh 1": "cp scale.py my_handler.py",
    "docs/open-inference.md: Try it: sh 2": "",
    "docs/kserve.md: Serve a model: sh 2": "rm -f scale.mar",
}
# The responses of the models of the examples.
PRINTED = {
    "docs/many-models.md: Try it: sh 1": '"parked": 198',
    "docs/rollouts.md: Try it: sh 2": '"happy": 0.88',
    "docs/workflows.md: An example: sh 1": BLOCKS["docs/workflows.md: An example: json 1"].text.strip(),
}
# These commands need no server.
CHECKS = "docs/check.md: Check a handler: sh 1", "docs/check.md: In CI: sh 1"
# Last, with servers that they start.
BATCHER = "docs/batching.md: Settings: sh 3"
REPLAY = "docs/replay.md: Example: sh 1", "docs/replay.md: Example: sh 2"
SERVE = "README.md: Serve a script: sh 1"
_OTHERS = {DOUBLER, *SEQUENCES, SCALE, SCALED, SCALE_CLIENT, GRPC_CLIENT, ARCHIVER, SMALL}
RUN = {*HANDLERS, *_OTHERS, *SHELL, *CHECKS, BATCHER, *REPLAY, SERVE}
_READ = ("yaml", "json", "properties", "console", "text")


def not_here(block):
    return any(line.startswith(tuple(NOT_HERE)) for line in block.text.splitlines())


def test_every_block_is_run_read_or_listed():
    names = {
        name
        for name, block in BLOCKS.items()
        if name in RUN or not (block.language in _READ or not_here(block))
    }
    elsewhere = {name: why for name, why in NOT_RUN.items() if (ROOT / why).is_file()}

    assert sorted(names - RUN - NOT_RUN.keys()) == []
    assert sorted((RUN | NOT_RUN.keys()) - BLOCKS.keys()) == []
    assert RUN & NOT_RUN.keys() == set()
    message = {name: (ROOT / file).read_text("utf-8") for name, file in elsewhere.items()}
    assert [n for n, text in message.items() if n.split(": ")[0] not in text] == []


@pytest.mark.parametrize("block", of_language("python"), ids=lambda block: block.name)
def test_python_can_be_compiled(block):
    text = f"{{{block.text}}}" if re.match(r'\s*"\w+":', block.text) else block.text
    compile(text, block.name, "exec")


@pytest.mark.parametrize("block", of_language("yaml"), ids=lambda block: block.name)
def test_yaml_is_read_without_a_warning(block):
    """A manifest by its schema elsewhere; a metrics file and a ``model-config.yaml`` as the server does."""
    documents = list(yaml.safe_load_all(block.text))
    if any("apiVersion" in document for document in documents):
        return
    if "ts_metrics" in documents[0]:
        parse_metrics_config(block.text)
        return

    assert parse_model_config(block.text)[1] == []


@pytest.mark.parametrize("block", of_language("json"), ids=lambda block: block.name)
def test_json_is_json(block):
    json.loads(block.text)


def test_properties_are_settings(tmp_path):
    """Each block is a ``config.properties`` that the server takes without a warning."""
    for block in of_language("properties"):
        file = tmp_path / "config.properties"
        file.write_text(block.text, "utf-8")
        loaded = load_settings({"ts_config": str(file)}, {}, tmp_path)

        assert loaded.warnings == [], block.name
        assert {line.partition("=")[0] for line in block.text.splitlines() if "=" in line} <= KEYS.keys()


@pytest.mark.parametrize("block", of_language("console"), ids=lambda block: block.name)
def test_commands_in_a_console_are_ours(block):
    """Their parsers take the options of commands that last minutes, or need files of one's own."""
    commands = block.text.replace("\\\n", " ").splitlines()
    for line in [line.removeprefix("$ ") for line in commands if line.startswith("$ ")]:
        name, *words = shlex.split(line)
        if name == "modelserver":
            import_module(COMMANDS[words[0]][0]).build_parser().parse_args(words[1:])
        elif name == "modelserver-archive":
            make_parser().parse_args(words)
        else:
            assert name == "mkdir", line


@pytest.fixture(scope="module")
def model_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "prices.json").write_text('{"apple": 1.5}')
    return folder


def source_of(name, around="{block}"):
    """A block in the code around it, at the depth at which it stands there."""
    before, _, after = around.partition("{block}")
    depth = before.rpartition("\n")[2]
    indented = textwrap.indent(BLOCKS[name].text, depth).removeprefix(depth)
    return before.replace("{{", "{").replace("}}", "}") + indented + after


def ask(server, store, name, exchange, model):
    (store / f"{model}.py").write_text(source_of(name, exchange.around), "utf-8")
    server.registered(f"{model}.py", model_name=model)
    answer = server.inference.post(f"/predictions/{model}", content=exchange.body, headers=_JSON)

    assert (answer.status_code, answer.content.replace(b" ", b"").replace(b"\n", b"")) == (
        200,
        exchange.answer.replace(b" ", b""),
    )


def model_of(name):
    return "block_" + "".join(letter if letter.isalnum() else "_" for letter in name)


@pytest.mark.parametrize("name", HANDLERS)
def test_handlers_answer(shared_server, model_store, name):
    ask(shared_server, model_store, name, HANDLERS[name], model_of(name))


def test_handlers_of_the_page_refuse_and_count(shared_server):
    """One turns down what it cannot read, by "Errors"; one counts, by "Custom metrics"."""
    refusing, counting = (
        f"docs/torchserve-handlers.md: {title}: python 1" for title in ("Errors", "Custom metrics")
    )
    answer = shared_server.predict(model_of(refusing), b"seven")

    assert (answer.status_code, answer.json()["message"][:18]) == (400, "not a measurement:")
    model = model_of(counting)
    assert shared_server.metric("Pictures", ModelName=model) == 1
    assert shared_server.metric("Lookup", ModelName=model) == 1.5


def test_sequence_adds_its_numbers_up(shared_server, model_store):
    code, config = (BLOCKS[name].text for name in SEQUENCES)
    archived(model_store, "summing", code, config=config)
    shared_server.registered("summing.mar")
    headers = {"ts_request_sequence_id": "a"}
    sums = [shared_server.predict("summing", b"%d" % n, headers=headers).json()["sum"] for n in (1, 2, 3)]

    assert sums == [1, 3, 6]


def test_handler_of_the_page_answers_open_inference(shared_server, model_store, capsys):
    """The handler's answer is the one that is shown, but for the id; Triton's client prints numbers."""
    (model_store / "scale.py").write_text(BLOCKS[SCALE].text, "utf-8")
    shared_server.registered("scale.py")
    page = (ROOT / "docs" / "open-inference.md").read_text("utf-8")
    body = page.partition("/v2/models/scale/infer -d '")[2].partition("'")[0]
    answer = shared_server.inference.post("/v2/models/scale/infer", content=body).json()

    assert {**answer, "id": "7f0c…"} == json.loads(BLOCKS[SCALED].text)
    pytest.importorskip("tritonclient.http")
    exec(BLOCKS[SCALE_CLIENT].text.replace("localhost:8080", f"127.0.0.1:{shared_server.port}"), {})
    assert capsys.readouterr().out == "[2. 5.]\n"


def test_archives_are_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mnist_handler.py", "mnist.pt"):
        (tmp_path / name).write_text("")
    exec(BLOCKS[ARCHIVER].text, {})

    assert (tmp_path / "mnist.mar").is_file()


@pytest.mark.slow
def test_picture_becomes_a_tensor_of_the_size_in_the_page():
    scope = {"__name__": "small"}
    exec(BLOCKS[SMALL].text, scope)

    assert scope["Small"].image_processing(Image.new("RGB", (300, 200))).shape == (3, 160, 160)


@dataclass(frozen=True, slots=True)
class Clone:
    """A folder like a clone with its environment, in which commands find the server at its usual ports."""

    path: Path
    environment: dict[str, str]
    ports: dict[int, int]

    def run(self, command):
        return output_of(command, self.path, self.environment)


_SCRIPT = """
import modelserver
class Sentiment(modelserver.Handler):
    def predict(self, rows):
        return [instances for instances in rows]
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone, with the server that the README's first command starts."""
    path = tmp_path_factory.mktemp("clone")
    programs = path / ".venv" / "bin"
    programs.mkdir(parents=True)
    commands = {
        "modelserver": "-m modelserver",
        "modelserver-archive": "-m modelserver.tools.archiver",
        "modelserver-aliases": "-m modelserver.tools.aliases",
        "python": "",
    }
    for name, module in commands.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        program.chmod(0o755)
    (path / "model_store").mkdir()
    shutil.copy(ROOT / "model_store" / "mnist.mar", path / "model_store")
    for folder in ("deploy", "examples"):
        (path / folder).symlink_to(ROOT / folder)
    (path / "handler.py").write_text(_SCRIPT)
    (path / "doubler.py").write_text(BLOCKS[DOUBLER].text, "utf-8")
    (path / "scale.py").write_text(BLOCKS[SCALE].text, "utf-8")
    ports = {port: free_port() for port in (8080, 8081, 8082, 7070, 7071)}
    (path / ".curlrc").write_text(
        "fail\n" + "".join(f'connect-to = "localhost:{a}:127.0.0.1:{b}"\n' for a, b in ports.items())
    )
    addresses = [
        f"{role}_address=http://127.0.0.1:{ports[port]}\n"
        for role, port in (("inference", 8080), ("management", 8081), ("metrics", 8082))
    ]
    (path / "ports.properties").write_text(
        "".join(addresses) + f"grpc_inference_port={ports[7070]}\ngrpc_management_port={ports[7071]}\n"
    )
    usual = {"CURL_HOME": str(path), "HOME": str(path), "TS_CONFIG_FILE": str(path / "ports.properties")}
    home = Home(path, usual)
    home.environment["PATH"] = os.pathsep.join([str(programs), os.environ["PATH"]])
    made = Clone(path, home.environment, ports)
    _, start = BLOCKS["README.md: Start: sh 1"].text.rsplit(" && ", 1)
    try:
        made.run(start)
        yield made
    finally:
        made.run(".venv/bin/modelserver --stop || true")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELL)
def test_commands_succeed(clone, name):
    """Commands run in the listed order; curl fails on an error response."""
    message = clone.run(f"{SHELL[name]}\n{BLOCKS[name].text}")

    assert message.startswith("2") or not name.startswith("README.md: ")
    assert PRINTED.get(name, "") in message


@pytest.mark.slow
def test_a_handler_with_torch_answers(clone):
    (clone.path / "model_store" / "my_handler.py").write_text(BLOCKS[DOUBLER].text, "utf-8")
    query = "url=my_handler.py&initial_workers=1&synchronous=true"
    clone.run(f"curl -s -X POST 'localhost:8081/models?{query}'")

    data = "-H 'Content-Type: application/json' -d '{\"numbers\": [1, 2]}'"
    assert json.loads(clone.run(f"curl -s localhost:8080/predictions/my_handler {data}")) == [2.0, 4.0]


@pytest.mark.slow
def test_grpc_client_prints_classes(clone, monkeypatch):
    pytest.importorskip("tritonclient.grpc")
    clone.run(_REMOVED)
    query = (
        "url=torchvision://resnet18?weights=random&model_name=resnet-152&initial_workers=1&synchronous=true"
    )
    clone.run(f"curl -s -X POST 'http://localhost:8081/models?{query}'")
    Image.new("RGB", (64, 64), "orange").save(clone.path / "kitten.jpg")
    monkeypatch.chdir(clone.path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(BLOCKS[GRPC_CLIENT].text.replace("localhost:7070", f"127.0.0.1:{clone.ports[7070]}"), {})

    assert "0." in printed.getvalue()


@pytest.mark.slow
def test_a_script_is_served(clone):
    """By the README's command, on other ports; Ctrl-C stops it."""
    port = free_port(3)
    command = [*shlex.split(BLOCKS[SERVE].text), "--port", str(port)]
    output = clone.path / "serve.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=clone.path, env=clone.environment, stdout=file)
    try:
        wait_until(lambda: "is served from handler.py" in output.read_text(), "the script is served")
        url = f"127.0.0.1:{port}/predictions/handler"
        assert clone.run(f"curl -s -d 4 -H 'Content-Type: application/json' {url}") == "4"
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(30)
        print(output.read_text())
        assert status == 0


@pytest.mark.slow
def test_handlers_and_archives_are_checked(clone):
    """The page's names are those of a handler, an archive, weights and inputs that nothing is wrong with."""
    archived(clone.path, "model", clone.path / "handler.py")
    for name in ("pictures", "samples"):
        (clone.path / name).mkdir()
        for number in (1, 2):
            (clone.path / name / f"{number}.json").write_text(str(number))
    for name, text in (("a.json", "[1]"), ("b.json", "[2]"), ("weights.pt", "none")):
        (clone.path / name).write_text(text)
    message = [clone.run(BLOCKS[name].text) for name in CHECKS]

    assert message[0].count(": nothing is wrong") == 2
    assert '"findings": []' in message[0]
    assert "model.mar: nothing is wrong" in message[1]


@pytest.mark.slow
def test_batcher_flags_apply_to_all_models(clone):
    """For models that set nothing themselves. It restores no snapshot here, and neither does the next."""
    clone.run(f".venv/bin/modelserver --stop && rm -r logs/config\n{BLOCKS[BATCHER].text}")
    clone.run("curl -X POST 'localhost:8081/models?url=scale.mar&initial_workers=0'")
    (described,) = json.loads(clone.run("curl localhost:8081/models/scale"))

    assert (described["batchSize"], described["maxBatchDelay"]) == (32, 500)


@pytest.mark.slow
def test_requests_are_recorded_and_replayed(clone):
    """A request is sent again to the server that answered it, whose ports are others than on the page."""
    clone.run(".venv/bin/modelserver --stop")
    management = f"--management http://127.0.0.1:{clone.ports[8081]}"
    for name in REPLAY:
        text = BLOCKS[name].text.replace("> my.properties", "| cat - ports.properties > my.properties")
        text = text.replace("modelserver record", f"modelserver record {management}")
        text = text.replace("--to http://localhost:8080", f"--to http://127.0.0.1:{clone.ports[8080]}")
        message = clone.run(f"unset TS_CONFIG_FILE\n{text}")

    assert "0 of 1 answers differ" in message
