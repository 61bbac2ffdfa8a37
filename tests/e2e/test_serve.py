"""``modelserver serve`` in the ways of docs/serve.md: the command, its output, and what answers."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import psutil
import pytest
from tests.e2e.serving import Home, free_port, wait_until

from modelserver.tools.archiver import ArchiveConfig, build_archive

pytestmark = pytest.mark.slow

PATIENCE = 90.0
_HANDLER = """
import os, time
import modelserver
from helper import FACTOR

class Doubler(modelserver.Handler):
    def predict(self, rows: list[int]) -> list[int]:
        print("batch of", len(rows), "up to", max(rows))
        while 1000 in rows and not os.path.exists(os.environ["TMPDIR"] + "/over"):
            time.sleep(0.01)
        return [FACTOR * row for row in rows]

if __name__ == "__main__":
    modelserver.serve(Doubler, batch_size=8, port={port})
"""
_FUNCTION = (
    "def handle(data, context):\n    return None if data is None else [len(r['body']) for r in data]\n"
)
_NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return x * self.weight
"""
_LOADS = """
from pathlib import Path
import modelserver, torch

class Scaled(modelserver.Handler):
    def load(self, context):
        file = context.manifest["model"]["serializedFile"]
        self.weight = torch.load(Path(context.system_properties["model_dir"]) / file)["weight"]

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.weight
"""

_BASE = """
from ts.torch_handler.base_handler import BaseHandler

class Lengths(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [len(row["body"]) for row in data]
"""
_TYPED = """
import msgspec, modelserver, pydantic

class Point(msgspec.Struct):
    x: int

class Person(pydantic.BaseModel):
    age: int

class Moved(modelserver.Handler):
    def predict(self, rows: list[Point]) -> list[Point]:
        return [Point(row.x + 1) for row in rows]

class Older(modelserver.Handler):
    def prepare(self, row: Person) -> int:
        return row.age

    def predict(self, rows):
        return [row + 1 for row in rows]

    def answer(self, row: int) -> Person:
        return Person(age=row)

class Counting(modelserver.Handler):
    def predict(self, rows: list[int]):
        for step in range(3):
            yield [f"{row + step} " for row in rows]
"""


class Served:
    """A command that serves, what it has printed, and a client."""

    def __init__(self, home, port, process):
        self.home = home
        self.port = port
        self.process = process
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False)
        self.management = httpx.Client(base_url=f"http://127.0.0.1:{port + 1}", timeout=PATIENCE)

    def await_text(self, text):
        wait_until(
            lambda: text in self.home.output() or self.process.poll() is not None,
            f"{text!r} in {self.home.output()}",
            PATIENCE,
        )
        output = self.home.output()
        assert text in output, output
        return output

    def end(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE) == 0, self.home.output()
        assert self.home.workdirs() == []
        return self.home.output()


@contextlib.contextmanager
def ended(served):
    """What is left of its process afterwards is killed."""
    process = served.process
    try:
        yield served
    finally:
        served.client.close()
        served.management.close()
        if process.poll() is None:
            for left in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                with contextlib.suppress(psutil.Error):
                    left.kill()
        process.wait()


def run_script(home, port, script):
    return ended(Served(home, port, home.start([sys.executable, script])))


@contextlib.contextmanager
def steady_requests(client, path, row):
    """Sends one request after the other; yields the responses so far."""
    answers = []
    over = threading.Event()

    def ask():
        while not over.wait(0.01):
            answers.append(client.post(path, json=row).text)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def serve(home, *arguments):
    """The command; a start from nothing is tested by ``test_code_blocks.py``."""
    port = free_port(3)
    return ended(Served(home, port, home.popen("serve", *arguments, "--port", port)))


def test_a_script_is_served_from_the_first_save_to_the_last(home):
    """The command that is shown works in a shell, the console is where it says, the annotations are told as
    V2 metadata and OpenAPI, and a wrong row is answered with 400, that of --input too; a broken save keeps
    the old handler and names the user's own line, the next good one replaces it, without a request lost;
    Ctrl-C ends it once it has answered.
    """
    (home.path / "doubler.py").write_text(_HANDLER)
    (home.path / "helper.py").write_text("FACTOR = 2\n")
    (home.path / "input.json").write_text("21")
    with serve(home, "doubler.py", "--batch-size", 8, "--reload", "--input", "input.json") as served:
        output = served.await_text("input.json → 200")
        assert re.search(r"input\.json → 200 in \d+\.\d ms \(queue;dur=.+\)\n42\n", output)
        command = next(line for line in output.splitlines() if line.startswith("  try")).split(maxsplit=1)[1]
        printed = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, text=True, check=True)
        assert printed.stdout == "42"
        assert "\x1b" not in output
        page = next(line.split()[1] for line in output.splitlines() if line.startswith("  console "))
        assert "<title>modelserver</title>" in served.management.get(page).text

        client, name = served.client, "doubler"
        assert client.post(f"/v1/models/{name}:predict", json={"instances": [1, 2]}).json()[
            "predictions"
        ] == [2, 4]
        refused = client.post(f"/predictions/{name}", json="x")
        assert (refused.status_code, refused.json()["message"]) == (400, "Expected `int`, got `str`")
        assert client.get(f"/v2/models/{name}").json()["inputs"] == [
            {"name": "input_0", "datatype": "INT64", "shape": [-1]}
        ]
        described = client.options(f"/predictions/{name}").json()["paths"][f"/predictions/{name}"]["post"]
        assert described["requestBody"]["content"] == {"application/json": {"schema": {"type": "integer"}}}

        with steady_requests(client, f"/predictions/{name}", 1) as answers:
            (home.path / "helper.py").write_text("FACTOR = 3\nFACTOR +\n")
            served.await_text("the one from before keeps serving")
            assert set(answers) == {"2"}
            (home.path / "input.json").write_text('"x"')
            (home.path / "helper.py").write_text("FACTOR = 3\n")
            served.await_text("is the new one now")
            output = served.await_text("Expected `int`, got `str`")
            assert re.search(r"input\.json → 400 in \d+\.\d ms", output)
            wait_until(lambda: "3" in answers, "the new one answers")
        assert set(answers) == {"2", "3"}
        with ThreadPoolExecutor(1) as executor:
            slow = executor.submit(client.post, f"/predictions/{name}", json=1000)
            served.await_text("doubler | batch of 1 up to 1000")
            served.process.send_signal(signal.SIGINT)
            served.await_text("Stopping: requests are answered for up to")
            (home.temp / "over").touch()
            assert served.process.wait(PATIENCE) == 0
            assert (slow.result().json(), home.workdirs()) == (3000, [])
    output = home.output()

    assert "SyntaxError: invalid syntax (helper.py, line 2)" in output
    assert f'File "{home.path}/helper.py", line 2' in output
    assert "doubler | batch of 1" in output
    assert not (home.path / "logs").exists()


def test_a_script_that_serves_itself(home):
    """``modelserver.serve`` serves until Ctrl-C; its workers do not. Of a killed script nothing is left."""
    port = free_port(3)
    (home.path / "doubler.py").write_text(_HANDLER.format(port=port))
    (home.path / "helper.py").write_text("FACTOR = 2\n")
    with run_script(home, port, "doubler.py") as served:
        output = served.await_text("is served from doubler.py:Doubler")
        assert served.client.post("/predictions/Doubler", json=4).json() == 8
        described = served.management.get("/models/Doubler").json()[0]
        assert (described["batchSize"], len(described["workers"])) == (8, 1)
        assert output.count("is served") == 1
        served.end()
    with run_script(home, port, "doubler.py") as served:
        served.await_text("is served from")
        family = psutil.Process(served.process.pid).children(recursive=True)
        served.process.kill()
        _, alive = psutil.wait_procs(family, PATIENCE)

    assert alive == []


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a network that multiplies by three in each of its forms, and handlers."""
    import torch

    folder = tmp_path_factory.mktemp("models")
    scope = {}
    exec(_NET, scope)
    net = scope["Net"]().eval()
    torch.jit.trace(net, torch.ones(2)).save(folder / "traced.pt")
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(net, (torch.ones(2, 2),), dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "exported.pt2")
    torch.save(net.state_dict(), folder / "weights.pt")
    with torch.no_grad():
        net.weight += 1
    torch.jit.trace(net, torch.ones(2)).save(folder / "by-four.pt")
    write_onnx(folder / "graph.onnx")
    (folder / "loads.py").write_text(_LOADS)
    (folder / "length.py").write_text(_FUNCTION)
    (folder / "base.py").write_text(_BASE)
    (folder / "typed.py").write_text(_TYPED)
    (folder / "unpacked" / "MAR-INF").mkdir(parents=True)
    (folder / "unpacked" / "own.py").write_text(_FUNCTION)
    (folder / "unpacked" / "MAR-INF" / "MANIFEST.json").write_text('{"model": {"handler": "own.py"}}')
    (folder / "broken.pt").write_text("no model")
    (folder / "empty.py").write_text("FACTOR = 2\n")
    packed = ArchiveConfig("packed", str(folder / "loads.py"), "1.0", export_path=folder)
    build_archive(replace(packed, serialized_file=folder / "weights.pt"))
    return folder


@pytest.mark.timeout(300)
def test_each_kind_of_source_is_served(home, models):
    """A class by its name with weights and several workers, a network and a folder are served, the last two
    also after they were replaced. For a file that is no model, and for a script without a handler, the
    command prints the reason and ends with status 1.
    """
    sources = home.path / "sources"
    shutil.copytree(models, sources)
    weights = ("--model-file", models / "weights.pt", "--batch-size", 8, "--workers", 2)
    rows = [1.0, 2.0], [3.0, 6.0]
    with contextlib.ExitStack() as stack:

        def begin(source, *flags):
            own = Home(home.path / source.replace(":", "-"))
            return stack.enter_context(serve(own, sources / source, *flags))

        good = [
            begin("loads.py:Scaled", *weights),
            begin("traced.pt", "--reload"),
            begin("unpacked", "--reload"),
        ]
        bad = [begin("broken.pt"), begin("empty.py")]
        for served, (body, answer) in zip(good, [rows, rows, ("abc", 3)], strict=True):
            served.await_text("is served from")
            (model,) = served.management.get("/models").json()["models"]
            printed = served.client.post(f"/predictions/{model['modelName']}", json=body)
            assert printed.json() == answer, served.home.output()
        (described,) = good[0].management.get("/models/Scaled").json()
        assert (described["batchSize"], len(described["workers"])) == (8, 2)
        os.replace(sources / "by-four.pt", sources / "traced.pt")
        (sources / "unpacked" / "own.py").write_text(_FUNCTION.replace("len(", "2 * len("))
        for served, body, answer in ((good[1], rows[0], [4.0, 8.0]), (good[2], "abc", 6)):
            served.await_text("is the new one now")
            (model,) = served.management.get("/models").json()["models"]
            assert served.client.post(f"/predictions/{model['modelName']}", json=body).json() == answer
        for served in good:
            served.end()
        for served, reason in zip(
            bad, ("not a TorchScript file", "has neither a class with the method handle"), strict=True
        ):
            assert served.process.wait(PATIENCE) == 1
            assert reason in served.home.output().partition("Not served: ")[2]


@pytest.mark.timeout(300)
def test_model_files_and_folders_are_served(models):
    """A torchvision network, TorchScript, torch.export, ONNX, a script with weights, also packed, a function,
    a BaseHandler and a folder are served; a model in the store is registered by its name there.
    """
    with serve(Home(models), "torchvision://resnet18?weights=random") as served:
        output = served.await_text("is served from")
        command = next(line for line in output.splitlines() if line.startswith("  try")).split(maxsplit=1)[1]
        printed = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, text=True, check=True)
        assert len(eval(printed.stdout)) == 5

        def register(url, name):
            query = {"url": url, "model_name": name, "initial_workers": 1, "synchronous": "true"}
            return served.management.post("/models", params=query)

        urls = ("traced.pt", "exported.pt2", "graph.onnx", "loads.py?model_file=weights.pt", "packed.mar")
        for url in urls:
            assert (answer := register(url, url[:5])).status_code == 200, answer.text
            tripled = served.client.post(f"/predictions/{url[:5]}", json=[1.0, 2.0])
            assert tripled.json() == [3.0, 6.0], url
            tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
            answered = served.client.post(f"/v2/models/{url[:5]}/infer", json={"inputs": [tensor]})
            assert answered.json()["outputs"][0]["data"] == [3, 6, 9, 12]
        declared = served.client.get("/v2/models/expor").json()["inputs"]
        assert declared == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
        for url in ("length.py", "base.py", "unpacked"):
            assert register(url, url[:5]).status_code == 200
            assert served.client.post(f"/predictions/{url[:5]}", content=b"abc").json() == 3
        check_annotations(served, register)
        refused = register("broken.pt", "broken")
        assert refused.status_code == 500
        assert "broken.pt is not a TorchScript file" in refused.json()["message"]
        served.end()


def check_annotations(served, register):
    """Structs and pydantic models are read, refused by name, sent back and described; parts are streamed."""
    for name, field, wrong in (("Moved", "x", "Expected `int`"), ("Older", "age", "age: ")):
        assert register(f"typed.py:{name}", name).status_code == 200
        path = f"/predictions/{name}"
        assert served.client.post(path, json={field: 1}).json() == {field: 2}
        refused = served.client.post(path, json={field: "a"})
        assert (refused.status_code, refused.json()["message"].startswith(wrong)) == (400, True)
        document = served.client.options(path).json()
        content = document["paths"][path]["post"]["requestBody"]["content"]
        schema = content["application/json"]["schema"]
        name_of_schema = schema.get("$ref", "").rpartition("/")[2]
        schema = document["components"]["schemas"].get(name_of_schema, schema)
        assert schema["properties"][field]["type"] == "integer"
        assert served.client.get(f"/v2/models/{name}").json()["inputs"][0]["datatype"] == "BYTES"
    assert register("typed.py:Counting", "Counting").status_code == 200
    with served.client.stream("POST", "/predictions/Counting", json=5) as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        assert "".join(answer.iter_text()) == "5 6 7 "


def write_onnx(path):
    from onnx import TensorProto, helper, save_model

    three = helper.make_tensor("three", TensorProto.FLOAT, [1], [3.0])
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2]) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "three"], ["y"])], "g", [sides[0]], [sides[1]], [three]
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_scripts_that_cannot_be_served(home):
    """One that prints megabytes and raises at import, one with two handlers, and a port in use end the
    command with status 1 and say what to do; with ``--reload`` a script may be mended.
    """
    (home.path / "loud.py").write_text(
        "for n in range(300_000):\n    print('x' * 10)\nraise KeyError('gone')\n"
    )
    class_of = (
        "import modelserver\n"
        "class {0}(modelserver.Handler):\n    def predict(self, rows):\n        return rows\n"
    )
    (home.path / "two.py").write_text(class_of.format("First") + class_of.format("Second"))
    began = time.monotonic()
    with serve(home, "loud.py") as served:
        assert served.process.wait(PATIENCE) == 1
        output = home.output()
    assert "Not served: KeyError: 'gone' (loud.py, line 3, in <module>)" in output
    assert len(output) < 2_000_000
    assert time.monotonic() - began < PATIENCE

    with serve(home, "two.py", "--reload") as served:
        served.await_text("Waiting for a change")
        with socket.create_server(("127.0.0.1", free_port(3))) as taken:
            port = taken.getsockname()[1]
            second = Home(home.path / "second", {"NO_COLOR": "1"})
            printed = second.run("serve", "../two.py:First", "--port", port, timeout=PATIENCE)
        (home.path / "two.py").write_text(class_of.format("First"))
        served.await_text("is the new one now")
        assert served.client.post("/predictions/two", json=[1]).json() == [1]
        output = served.end()
    assert "['First', 'Second']: name the one to serve, as in two.py:First" in output
    assert printed.returncode == 1
    assert printed.stdout.startswith(f"Port {port}, for inference, is in use by another program")
