import io
import runpy

import pytest
from PIL import Image
from tests import tiny_models
from tests.e2e.serving import ROOT, Home, Server, serving
from tests.object_stores import hub

# A fresh environment compiles the library's thousand files first.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    pytest.importorskip("transformers")
    store = tmp_path_factory.mktemp("store")
    makers = {
        "llama": tiny_models.llama,
        "broken": lambda folder: tiny_models.llama(folder, broken="liquor"),
        "vit": tiny_models.vit,
        "ranks": lambda folder: tiny_models.bert(folder, "ForSequenceClassification", num_labels=1),
        "masks": lambda folder: tiny_models.bert(folder, "ForMaskedLM"),
    }
    for name, make in makers.items():
        (store / name).mkdir()
        make(store / name)
    return store


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    """A server with that store, whose hub has the model ``masks``."""
    cache = str(tmp_path_factory.mktemp("hub"))
    with hub() as made:
        made.files = {path.name: path.read_bytes() for path in (folders / "masks").iterdir()}
        variables = {**made.variables, "HF_HOME": cache}
        home = Home(tmp_path_factory.mktemp("home"), variables, for_children=True)
        settings = {"allowed_urls": "hf://owner/tiny.*"}
        with serving(Server(home, folders, (), settings)) as started:
            started.registered("masks?task=embeddings", model_name="meant", initial_workers=1)
            yield started


def post(server, path, **body):
    response = server.inference.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_folder_is_served(server):
    """Each behind the endpoints of its task."""
    for name in ("llama", "vit", "ranks"):
        server.registered(name, initial_workers=1)
    file = io.BytesIO()
    Image.new("RGB", (12, 12), "red").save(file, "PNG")
    messages = [{"role": "user", "content": "fox"}]

    chat = post(server, "/v1/chat/completions", model="llama", messages=messages, max_tokens=3)
    ranking = post(server, "/v1/rerank", model="ranks", query="fox", documents=["dog", "the quick fox"])
    labels = server.inference.post("/predictions/vit", content=file.getvalue()).json()
    too_long = {"model": "llama", "messages": [{"role": "user", "content": "fox " * 90}], "stream": True}

    assert chat["usage"]["completion_tokens"] == 3
    assert {each["index"] for each in ranking["results"]} == {0, 1}
    assert {each["label"] for each in labels} == {"cat", "dog", "fox"}
    assert len(server.inference.post("/predictions/meant", content=b"fox").json()) == 16
    refused = server.inference.post("/v1/chat/completions", json=too_long)
    assert (refused.status_code, "the model's length is 64" in refused.text) == (400, True)


def test_logits_that_are_no_numbers_fail_their_request_alone(server):
    """Where tokens are sampled; also a stream, before its first one. The other prompts are answered."""
    server.registered("broken", initial_workers=1)
    pid = server.describe("broken")["workers"][0]["pid"]
    body = {"model": "broken", "prompt": "five liquor", "max_tokens": 1, "temperature": 1}
    for more in ({}, {"stream": True}):
        failed = server.inference.post("/v1/completions", json={**body, **more})
        assert (failed.status_code, "either `inf`, `nan`" in failed.text) == (500, True)
    for more in ({"temperature": 0}, {"prompt": "five"}):
        assert post(server, "/v1/completions", **body | more)["usage"]["completion_tokens"] == 1

    assert server.describe("broken")["workers"][0]["pid"] == pid


def test_model_of_the_hub_is_served(server):
    """Its vectors are those of the same folder, whatever shares their batch."""
    url = "hf://owner/tiny?task=embeddings"
    server.registered(url, initial_workers=1)
    texts = [*tiny_models.TEXTS, "fox"]

    first, second = (
        [each["embedding"] for each in post(server, "/v1/embeddings", model=name, input=texts)["data"]]
        for name in ("tiny", "meant")
    )

    assert first == [pytest.approx(vector, abs=1e-5) for vector in second]
    assert server.describe("tiny")["modelUrl"] == url
    assert server.describe("tiny")["batchSize"] == 32
    server.home.wait_for_log("Downloading tiny: 100 %")


def test_example_finds_sentences_with_the_same_words(server, folders, monkeypatch, capsys):
    """The model is built, served and searched, as its README has it."""
    example = ROOT / "examples" / "embeddings"
    runpy.run_path(str(example / "build.py"))["build"](folders / "search")
    server.registered("search", initial_workers=1)
    monkeypatch.setattr("sys.argv", ["search.py", "dogs in the garden"])
    address = str(server.inference.base_url)
    source = (example / "search.py").read_text().replace("http://localhost:8080", address)
    capsys.readouterr()
    exec(compile(source, str(example / "search.py"), "exec"), {"__file__": str(example / "search.py")})

    lines = capsys.readouterr().out.splitlines()
    assert "A small dog sleeps in the garden." in lines[0]
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("hf://other/model", 404, "does not match any allowed URL(s)"),
        ("hf://owner/tiny@gone", 404, "it has no revision gone"),
        ("hf://owner/tiny?task=juggling", 400, "task must be one of auto, text-generation"),
        ("masks?engine=none", 400, "engine must be one of auto, vllm, transformers"),
    ],
)
def test_refusal_says_what_is_wrong(server, url, status, message):
    refused = server.register(url)
    assert (refused.status_code, message in refused.json()["message"]) == (status, True)
