import httpx
import pytest
from tests.e2e.blocks import BLOCKS
from tests.e2e.chunks import BrokenOff, ChunkReader
from tests.e2e.serving import Home, Server, serving, wait_until

from modelserver import testing

SHOP = "/predictions/shop"


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    home = Home(tmp_path_factory.mktemp("shop"))
    with serving(Server(home, model_store, settings={"frontend_processes": 2})) as server:
        yield server.registered("shop.mar")


@pytest.fixture
def client(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}{SHOP}", timeout=20) as client:
        yield client


def test_request_and_response_are_those_of_the_application(client):
    """All parts of both; the path may name the version, a large body in gzip is inflated off the loop."""
    item = client.get("/items/5", params={"q": "a b"})
    put = client.put("/1.0/items/5", json={"name": "x"})
    wrong = client.put("/items/x", json={})

    assert item.json() == {"key": 5, "q": "a b", "state": "shop", "path": f"{SHOP}/items/3"}
    assert (put.status_code, put.json()) == (201, {"key": 5, "price": 1.0})
    assert [value.split(";")[0] for value in put.headers.get_list("set-cookie")] == ["a=1", "b=2"]
    assert (wrong.status_code, len(wrong.json()["detail"])) == (422, 2)
    assert client.get("/nowhere").json() == {"detail": "Not Found"}
    assert client.post("/events").headers["allow"] == "GET"
    assert client.get("/docs").headers["content-type"] == "text/html; charset=utf-8"

    size = client.post("/upload", files={"file": ("a.txt", b"12345")}).json()

    assert size == 5
    wait_until(lambda: "stored a.txt" in client.get("/events").json(), "the background task")

    import gzip

    for name in ("x", "x" * 2_000_000):
        body = gzip.compress(f'{{"name": "{name}"}}'.encode())
        head = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        assert client.put("/items/5", content=body, headers=head).status_code == 201


@pytest.mark.parametrize(
    ("version", "path", "answer"),
    [
        ("9", "/v1/chat/completions", "Model version: 9 does not exist for model: shop"),
        ("v1", "/openai/v1/chat/completions", "Model version: v1 does not exist for model: shop"),
        ("9", f"{SHOP}/9/v1/chat/completions", '{"detail":"Not Found"}'),
    ],
)
def test_version_of_a_body_is_no_part_of_a_path(server, version, path, answer):
    """One in the path may be a part of the application's; a version that a body names is missing."""
    missing = server.inference.post(path, json={"model": f"shop:{version}", "messages": []})
    assert (missing.status_code, answer in missing.text) == (404, True)


def test_events_come_as_they_are_sent(server, tmp_path):
    door = tmp_path / "door"
    with ChunkReader(server.port, f"{SHOP}/ticks?count=3&door={door}", None, method="GET") as reader:
        status, headers = reader.head()
        first = reader.chunk()
        door.touch()
        rest = b"".join(reader.chunks())

    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert (first, rest) == (b"data: 0\n\n", b"data: 1\n\ndata: 2\n\n")


def test_client_that_leaves_ends_its_stream(server, client):
    """The application's generator is closed, once the next part finds nobody."""
    before = client.get("/events").json().count("ticks have ended")
    with ChunkReader(server.port, f"{SHOP}/ticks?count=9999", None, method="GET") as reader:
        reader.head()
        reader.chunk()
    wait_until(lambda: client.get("/events").json().count("ticks have ended") == before + 1, "it ends")


def test_large_response_waits_for_its_client(client):
    """More than may wait for a client arrives whole, however slowly it is read."""
    size = 0
    with client.stream("GET", "/large", params={"size": 30_000_000}) as response:
        parts = response.iter_raw(65536)
        size += len(next(parts))
        # Others are served meanwhile.
        assert httpx.get(f"{client.base_url}items/1", timeout=20).json()["key"] == 1
        size += sum(map(len, parts))

    assert size == 30_000_000


def test_failure_is_of_one_request(server, client):
    """An exception is a 500; in a stream it breaks the response off. WebSockets are refused."""
    failed = client.delete("/items/5")
    with ChunkReader(server.port, f"{SHOP}/broken", None, method="GET") as reader:
        reader.head()
        with pytest.raises(BrokenOff):
            reader.chunks()

    assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    assert client.get("/items/5").status_code == 200

    offer = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "a"}
    refused = client.get("/ws", headers=offer)

    assert refused.status_code == 400
    assert "WebSockets are not supported" in refused.json()["message"]


@pytest.mark.parametrize(
    ("number", "path", "body"), [(1, "items/5?q=new", b'{"key":5,"q":"new"}'), (2, "name", b'"shop"')]
)
def test_applications_of_the_page_answer(number, path, body, tmp_path):
    text = BLOCKS[f"docs/asgi.md: Serve an ASGI application: python {number}"].text
    (tmp_path / "shop.py").write_text(text)
    with testing.client(tmp_path / "shop.py") as client:
        assert client.request("GET", f"{SHOP}/{path}").body == body


def test_application_answers_at_a_path_of_its_own(server, client):
    """Its documents and the URLs that it makes are below that path, which no other model gets."""
    server.registered("shop.mar", model_name="stall", route="/api/v3")
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as anywhere:
        item = anywhere.get("/api/v3/items/5", params={"q": "a b"})
        assert item.json() == {"key": 5, "q": "a b", "state": "shop", "path": "/api/v3/items/3"}
        assert anywhere.get("/api/v3/nowhere").json() == {"detail": "Not Found"}
        assert "'/api/v3/openapi.json'" in anywhere.get("/api/v3/docs").text
        assert anywhere.get("/api/v3/openapi.json").json()["servers"] == [{"url": "/api/v3"}]
        assert anywhere.put("/api/v3/items/5", json={"name": "x" * 2_000_000}).status_code == 201
        refused = anywhere.get("/api/v3/ws", headers={"Sec-WebSocket-Key": "a"})
        assert "WebSockets are not supported" in refused.json()["message"]
        assert anywhere.get("/api/v4/items/5").json()["type"] == "ResourceNotFoundException"

        for route, status, text in (
            ("/api/v3", 409, "belongs to the model stall already"),
            ("/models/x", 400, "the server's own paths begin with /models"),
            ("api", 400, "a path such as /api is needed"),
        ):
            answer = server.register("shop.mar", model_name="third", route=route)
            assert (answer.status_code, text in answer.json()["message"]) == (status, True)
        assert client.get("/items/5").json()["path"] == f"{SHOP}/items/3"
        server.home.wait_for_log("GET /api/v3/items/5?q=a+b HTTP/1.1", "access_log.log")
        counted = server.metrics.get("/metrics").text.splitlines()
        assert any("modelserver_requests_total{" in line and '"stall"' in line for line in counted)

        server.unregister("stall")
        assert anywhere.get("/api/v3/items/5").status_code == 404


def test_application_is_shut_down_with_its_model(server, client):
    server.unregister("shop")
    server.home.wait_for_log("the shop has closed", "model_log.log")
