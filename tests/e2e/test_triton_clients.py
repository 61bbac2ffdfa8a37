"""Triton's extensions, as its own clients use them: each method of both kinds, shared memory, statistics."""

import contextlib
import os
import re
from importlib import import_module

import numpy
import pytest
from tests.e2e.grpc_client import address_of, grpc_server
from tests.e2e.serving import ROOT, archived, copied, serving, wait_until

from modelserver.ext.triton.switches import log_settings

memories = pytest.importorskip("tritonclient.utils.shared_memory")
TritonError = import_module("tritonclient.utils").InferenceServerException

PREFIX = f"/modelserver_test_{os.getpid()}_"
CONFIG = """
batchSize: 8
signature:
  inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
  outputs: [{name: y, datatype: FP32, shape: [-1, 4]}]
"""
DOUBLE = """
def handle(data, context):
    return [doubled(row["data"]) for row in data or []]


def doubled(numbers):
    if numbers[0] < 0:
        raise ValueError("below zero")
    return numbers * 2
"""
# Methods that send no request.
PLUGINS = {"plugin", "register_plugin", "unregister_plugin"}
LOCAL = {"close", "generate_request_body", "parse_response_body"} | PLUGINS
STREAM = {"start_stream", "stop_stream", "async_stream_infer"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """``double`` has a signature, batches, and fails below zero; ``mirror`` gives back what it gets."""
    folder = tmp_path_factory.mktemp("triton")
    store = copied(folder / "store", model_store, "mirror")
    archived(store, "double", DOUBLE, "1", CONFIG)
    (folder / "index_to_name.json").write_text('{"0": "cat", "3": "dog"}')
    archived(store, "labelled", DOUBLE, "1", extra_files=str(folder / "index_to_name.json"))
    with serving(grpc_server(folder, store, shared_memory_prefix=PREFIX)) as started:
        started.registered("double.mar").registered("labelled.mar")
        started.registered("mirror.mar", batch_size=4, job_queue_size=2000)
        yield started


@pytest.fixture(scope="module", params=["http", "grpc"])
def kind(request):
    return pytest.importorskip(f"tritonclient.{request.param}")


@pytest.fixture(scope="module")
def client(server, kind):
    port = server.port if kind.__name__.endswith("http") else server.settings["grpc_inference_port"]
    with contextlib.closing(kind.InferenceServerClient(f"127.0.0.1:{port}")) as made:
        yield made


@pytest.fixture
def memory(client):
    """Makes shared memory of a name and a size, and registers it; all is gone afterwards."""
    made = []

    def make(name, size):
        made.append(memories.create_shared_memory_region(name, PREFIX + name, size))
        client.register_system_shared_memory(name, PREFIX + name, size)
        return made[-1]

    yield make
    client.unregister_system_shared_memory()
    for each in made:
        memories.destroy_shared_memory_region(each)


def numbers(kind, name="x", rows=1):
    made = kind.InferInput(name, [rows, 4], "FP32")
    made.set_data_from_numpy(numpy.ones((rows, 4), "f4"))
    return made


def as_dict(answer):
    json_format = import_module("google.protobuf.json_format")
    if hasattr(answer, "DESCRIPTOR"):
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)
    return answer


def refuses(ask, reason):
    with pytest.raises(TritonError, match=reason) as caught:
        ask()
    return str(caught.value)


def methods_of(module):
    outcome = pytest.importorskip(f"tritonclient.{module}").InferenceServerClient
    return {name for name in dir(outcome) if not name.startswith("_")}


def test_the_page_has_each_method():
    page = (ROOT / "docs" / "open-inference.md").read_text(encoding="utf-8")
    table = page.partition("### `tritonclient`")[2]
    rows = re.findall(r"(?m)^\| (`[^|]*`) \|", table)

    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set().union(
        *map(methods_of, ("http", "grpc", "http.aio", "grpc.aio"))
    )


def calls(kind):
    """One use of each method that sends a request."""

    def refused(name, *arguments, reason, **more):
        return lambda client: refuses(lambda: getattr(client, name)(*arguments, **more), reason)

    def asynchronous(client):
        if kind.__name__.endswith("http"):
            return client.async_infer("double", [numbers(kind)]).get_result()
        answers = []
        client.async_infer("double", [numbers(kind)], lambda result, error: answers.append((result, error)))
        ((result, error),) = wait_until(lambda: answers, "the answer")
        assert error is None
        return result

    return {
        "is_server_live": lambda client: client.is_server_live(),
        "is_server_ready": lambda client: client.is_server_ready(),
        "is_model_ready": lambda client: client.is_model_ready("double", "1"),
        "get_server_metadata": lambda client: client.get_server_metadata(),
        "get_model_metadata": lambda client: client.get_model_metadata("double", "1"),
        "get_model_config": lambda client: client.get_model_config("double", "1"),
        "get_model_repository_index": lambda client: client.get_model_repository_index(),
        "load_model": refused("load_model", "double", config="{}", reason="not supported"),
        "unload_model": refused("unload_model", "nothing", reason=r"does not exist|not found"),
        "get_inference_statistics": lambda client: client.get_inference_statistics(),
        "get_log_settings": lambda client: client.get_log_settings(),
        "update_log_settings": lambda client: client.update_log_settings({"log_verbose_level": 0}),
        "get_trace_settings": lambda client: client.get_trace_settings("double"),
        "update_trace_settings": lambda client: client.update_trace_settings(
            settings={"trace_level": ["OFF"], "trace_rate": None}
        ),
        "get_system_shared_memory_status": lambda client: client.get_system_shared_memory_status(),
        "register_system_shared_memory": refused(
            "register_system_shared_memory", "r", "/other", 8, reason=f"does not begin with '{PREFIX}'"
        ),
        "unregister_system_shared_memory": lambda client: client.unregister_system_shared_memory("none"),
        "get_cuda_shared_memory_status": lambda client: client.get_cuda_shared_memory_status(),
        "register_cuda_shared_memory": refused(
            "register_cuda_shared_memory",
            "r",
            b"aGFuZGxl",
            0,
            8,
            reason="CUDA shared memory is not supported",
        ),
        "unregister_cuda_shared_memory": lambda client: client.unregister_cuda_shared_memory(),
        "infer": lambda client: client.infer("double", [numbers(kind)]),
        "async_infer": asynchronous,
    }


def test_every_method_answers(client, kind):
    uses = calls(kind)

    assert set(uses) | LOCAL | STREAM == methods_of(kind.__name__.partition(".")[2]) | LOCAL | STREAM
    for name, use in uses.items():
        assert use(client) is not False, name


def test_a_stream_has_one_answer_per_request(server):
    """With an empty last answer asked for, as tools of Triton do, each request still has its one answer."""
    grpc = pytest.importorskip("tritonclient.grpc")
    answers = []
    with contextlib.closing(grpc.InferenceServerClient(address_of(server))) as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        for _ in range(3):
            client.async_stream_infer("double", [numbers(grpc)])
        wait_until(lambda: len(answers) == 3, "three answers")
        client.stop_stream()

    assert [error for _, error in answers] == [None] * 3


def test_both_clients_read_the_same_facts(client):
    extensions = as_dict(client.get_server_metadata())["extensions"]
    config = as_dict(client.get_model_config("double"))
    config = config.get("config", config)
    log, trace = as_dict(client.get_log_settings()), as_dict(client.get_trace_settings("double"))

    assert {"statistics", "model_configuration", "system_shared_memory", "sequence"} <= set(extensions)
    assert (config["name"], config["max_batch_size"], config["platform"]) == ("double", 8, "pytorch")
    (tensor,) = config["input"]
    assert (tensor["name"], tensor["data_type"], [*map(int, tensor["dims"])]) == ("x", "TYPE_FP32", [4])
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert "dynamic_batching" in config
    assert set(log.get("settings", log)) == set(log_settings())
    assert trace.get("settings", trace)["trace_level"] in (["OFF"], {"value": ["OFF"]})


def statistics(client, name, version=""):
    (outcome,) = as_dict(client.get_inference_statistics(name, version))["model_stats"]
    assert outcome["name"] == name
    return dict(outcome)


def test_statistics_count_requests_by_batch_size(client, kind, server):
    """Successful or not, of this client, until the model is unregistered."""
    name = f"counted_{kind.__name__.rpartition('.')[2]}"
    server.registered("double.mar", model_name=name)
    failing = kind.InferInput("x", [1, 4], "FP32")
    failing.set_data_from_numpy(numpy.full((1, 4), -1, "f4"))
    for rows in (1, 1, 3):
        client.infer(name, [numbers(kind, rows=rows)])
    refuses(lambda: client.infer(name, [failing]), "below zero")
    outcome = statistics(client, name, "1")
    stats = outcome["inference_stats"]

    assert [int(stats[end]["count"]) for end in ("success", "fail", "queue", "compute_infer")] == [3, 1, 4, 4]
    assert (int(outcome["inference_count"]), int(outcome["execution_count"])) == (6, 4)
    assert [int(batch["batch_size"]) for batch in outcome["batch_stats"]] == [1, 3]
    assert [int(batch["compute_infer"]["count"]) for batch in outcome["batch_stats"]] == [3, 1]
    assert int(stats["success"]["ns"]) > int(stats["queue"]["ns"]) > 0
    assert int(outcome["last_inference"]) > 1_600_000_000_000
    server.unregister(name)
    refuses(lambda: client.get_inference_statistics(name), r"does not exist|not found")
    refuses(lambda: client.get_model_config(name), r"does not exist|not found")


def test_classification_returns_the_highest_values(client, kind, server):
    """Of each row, best first, with the model's labels; all if there are fewer."""
    values = kind.InferInput("x", [2, 4], "FP32")
    values.set_data_from_numpy(numpy.array([[0.5, 1.65, 0, 2], [4, 0.1, 0.2, 0.3]], "f4"))
    result = client.infer(
        "labelled", [values], outputs=[kind.InferRequestedOutput("output_0", class_count=2)]
    )
    assert result.as_numpy("output_0").tolist() == [[b"4:3:dog", b"3.3:1"], [b"8:0:cat", b"0.6:3:dog"]]

    result = client.infer("double", [values], outputs=[kind.InferRequestedOutput("y", class_count=100)])
    assert result.as_numpy("y").shape == (2, 4)
    assert result.as_numpy("y")[0].tolist() == [b"4:3", b"3.3:1", b"1:0", b"0:2"]
    assert "classification" in as_dict(client.get_server_metadata())["extensions"]


def shared_input(kind, name, region, shape, datatype, size):
    made = kind.InferInput(name, shape, datatype)
    made.set_shared_memory(region, size)
    return made


@pytest.mark.parametrize("rows", [1, 2000])
def test_tensors_are_exchanged_in_shared_memory(client, kind, memory, rows):
    """Inputs come from there and outputs go there, also those that a helper joins."""
    size = rows * 16
    values, taken = memory("given", size), memory("taken", size + 8)
    sent = numpy.arange(rows * 4, dtype="f4").reshape(rows, 4)
    memories.set_shared_memory_region(values, [sent])
    output = kind.InferRequestedOutput("output_0")
    output.set_shared_memory("taken", size, 8)
    result = client.infer(
        "mirror", [shared_input(kind, "x", "given", [rows, 4], "FP32", size)], outputs=[output]
    )
    came = memories.get_contents_as_numpy(taken, numpy.float32, [rows, 4], 8)

    assert (came == sent).all()
    assert as_dict(result.get_output("output_0"))["name"] == "output_0"


def test_texts_are_read_from_shared_memory(client, kind, memory):
    """There are so many elements that a helper reads them, beside an input that is sent."""
    texts = numpy.array([[f"text {number}".encode() for number in range(6000)]], object)
    packed = import_module("tritonclient.utils").serialize_byte_tensor(texts)
    memories.set_shared_memory_region(memory("texts", len(packed.item())), [packed])
    shared = shared_input(kind, "texts", "texts", [1, 6000], "BYTES", len(packed.item()))
    result = client.infer("mirror", [numbers(kind, "x"), shared])

    assert result.as_numpy("texts").tolist() == texts.tolist()
    assert result.as_numpy("x").tolist() == [[1, 1, 1, 1]]


def test_memory_that_changes_is_an_error(client, kind, memory):
    """What is shortened, or unregistered, is an error of the request; the server serves on."""
    memory("short", 16)
    query = shared_input(kind, "x", "short", [1, 4], "FP32", 16)
    client.infer("double", [query])
    os.truncate(f"/dev/shm{PREFIX}short", 4)
    refuses(lambda: client.infer("double", [query]), "'short' has become shorter than it was registered with")
    refuses(
        lambda: client.register_system_shared_memory("again", f"{PREFIX}short", 16),
        "which 16 from byte 0 on exceed",
    )
    client.unregister_system_shared_memory("short")
    refuses(lambda: client.infer("double", [query]), "no shared memory is registered as 'short'")
    refuses(lambda: client.get_system_shared_memory_status("short"), "No shared memory is registered")
    refuses(lambda: client.register_system_shared_memory("up", f"{PREFIX}/../x", 16), "not the name of")

    assert client.infer("double", [numbers(kind)]).as_numpy("y").tolist() == [[2, 2, 2, 2]]
