import contextlib

import httpx
import psutil
import pytest
from tests.e2e.grpc_client import INFERENCE, MANAGEMENT, channel, ending, grpc_settings, manage, predict, stub
from tests.e2e.serving import Home, Server, free_port, serving, wait_until

from modelserver.ext.grpc.messages import message

FAILED = {
    "code": 400,
    "type": "InvalidKeyException",
    "message": "Token Authorization failed. Token either incorrect, expired, or not provided correctly",
}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """With tokens and a loaded model. Front ends check for inference, the server for the others."""
    settings = {"load_models": "echo.mar", "default_workers_per_model": 1, "frontend_processes": 2}
    settings |= {"token_authorization": "always", "cors_allowed_origin": "https://page.example"}
    settings |= grpc_settings()
    home = Home(tmp_path_factory.mktemp("tokens"))
    with serving(Server(home, model_store, settings=settings)) as started:
        headers = bearer(started.tokens()["inference"])
        wait_until(lambda: started.predict("echo", headers=headers).status_code == 200, "the model is ready")
        yield started


def test_requests_need_the_token_of_their_port(server):
    """Otherwise it is TorchServe's 400, before a model or the model API is looked up (F64)."""
    tokens = server.tokens()
    bare = {"Authorization": tokens["inference"]}
    for headers in ({}, bearer("wrong"), bearer(tokens["management"]), bare):
        for path in ("/predictions/echo", "/predictions/nowhere", "/nowhere"):
            answer = server.inference.post(path, content=b"x", headers=headers)
            assert answer.status_code == 400
            assert answer.json() == FAILED
            assert answer.headers["connection"] == "close"
    good = bearer(tokens["inference"])
    assert server.inference.post("/predictions/echo", content=b"x", headers=good).content == b"x"
    assert server.inference.post("/predictions/nowhere", headers=good).status_code == 404
    assert server.inference.get("/nowhere", headers=good).status_code == 404

    tokens = server.tokens()
    assert server.management.get("/models").json() == FAILED
    assert server.management.get("/models", headers=bearer(tokens["inference"])).json() == FAILED
    assert server.management.post("/models?url=x.mar").status_code == 400
    good = bearer(tokens["management"])
    assert server.management.get("/models", headers=good).json()["models"]


def test_calls_need_the_token_of_their_port(server):
    """Without it any gRPC call is PERMISSION_DENIED, except those of the health service."""
    metadata = {scope: (("authorization", f"Bearer {token}"),) for scope, token in server.tokens().items()}
    prediction, models = predict("echo", data=b"x"), manage("ListModels")
    denied = ("PERMISSION_DENIED", FAILED["message"])
    with channel(server, "inference") as one, channel(server, "management") as other:
        inference = stub(one, f"{INFERENCE}InferenceAPIsService")
        management = stub(other, f"{MANAGEMENT}ManagementAPIsService")
        assert inference.Predictions(prediction, metadata=metadata["inference"]).prediction == b"x"
        assert "echo" in management.ListModels(models, metadata=metadata["management"]).msg
        for wrong in (None, metadata["management"], (("authorization", "Bearer x"),)):
            assert ending(lambda wrong=wrong: inference.Predictions(prediction, metadata=wrong)) == denied
        assert ending(lambda: management.ListModels(models, metadata=metadata["inference"])) == denied
        assert ending(lambda: list(inference.StreamPredictions(prediction))) == denied
        check = message("grpc.health.v1.HealthCheckRequest")()
        assert stub(one, "grpc.health.v1.Health").Check(check).status == 1
        ready = message("inference.ServerReadyRequest")()
        assert stub(one, "inference.GRPCInferenceService").ServerReady(ready).ready


def test_renewal_replaces_the_token(server):
    """The new token is in the file, the body is a line end, and the old token is refused (reference 16.2)."""
    before = server.tokens()
    for wrong in ({}, bearer(before["management"])):
        answer = server.management.get("/token?type=inference", headers=wrong)
        assert answer.status_code == 400
        assert "Token Authentication failed" in answer.json()["message"]
    for query in ("", "?type=API", "?type=x"):
        assert server.management.get(f"/token{query}", headers=bearer(before["API"])).status_code == 400
    answer = server.management.get("/token?type=inference", headers=bearer(before["API"]))
    assert (answer.status_code, answer.content) == (200, b"\n")
    assert answer.headers["content-type"] == "application/json"

    after = server.tokens()
    assert after["inference"] != before["inference"]
    assert (after["management"], after["API"]) == (before["management"], before["API"])
    wait_until(
        lambda: server.predict("echo", b"x", headers=bearer(before["inference"])).status_code == 400,
        "the old token is no good",
    )
    # The other front end learns of it by itself.
    wait_until(
        lambda: server.predict("echo", b"x", headers=bearer(after["inference"])).content == b"x",
        "the new token is good",
    )


def test_tokens_are_nowhere_else(server):
    """Neither logs nor output have one (F64, F68)."""
    place = server.home.path / "key_file.json"
    text = server.home.output() + "".join(
        path.read_text("utf-8", "replace") for path in (server.home.path / "logs").rglob("*.log")
    )
    reason = "since the configuration requires it"
    assert f"Token authorization is on, {reason}; tokens: they are in {place}" in text
    assert not [key for key in server.tokens().values() if key in text]


def test_a_new_front_end_knows_the_tokens(server):
    """One that takes the place of another lets in the same requests, and no others (F64)."""
    children = psutil.Process(server.pid).children()
    ended = [each for each in children if "modelserver.ext.frontends" in each.cmdline()]
    assert len(ended) == 2
    for process in ended:
        process.kill()
    url, good = f"http://127.0.0.1:{server.port}/predictions/echo", bearer(server.tokens()["inference"])
    seen = set()

    def is_back():
        with contextlib.suppress(httpx.TransportError):
            seen.add(httpx.post(url, trust_env=False).status_code)
            return httpx.post(url, headers=good, trust_env=False).is_success
        return False

    wait_until(is_back, "a front end is back")
    assert seen == {400}


def test_tokens_of_the_environment_do_not_reach_workers(start_server):
    """Tokens of the environment open the server, and handlers do not find them in theirs (F68)."""
    names = [f"MODELSERVER_{scope}_TOKEN" for scope in ("INFERENCE", "MANAGEMENT", "API")]
    tokens = {name: f"given-{name}" for name in names}
    server = start_server(environment=tokens, load_models="obey.mar", default_workers_per_model=1)
    assert not (server.home.path / "key_file.json").exists()
    assert server.predict("obey", {"do": "answer"}).json() == FAILED
    assert server.predict("obey", {"do": "nothing"}, headers=bearer(f"given-{names[0]}")).status_code == 200
    workers = server.workers()
    assert workers
    assert not [name for worker in workers for name in names if name in worker.environ()]


@pytest.mark.parametrize("front_ends", [1, 2])
def test_path_of_a_model_takes_the_inference_token_at_a_shared_address(start_server, front_ends):
    names = {scope: f"MODELSERVER_{scope.upper()}_TOKEN" for scope in ("inference", "management", "api")}
    address = f"http://127.0.0.1:{free_port()}"
    tokens = {name: f"given-{scope}" for scope, name in names.items()}
    shared = {"inference_address": address, "management_address": address}
    settings = {**shared, "token_authorization": "always", "frontend_processes": front_ends}
    server = start_server(environment=tokens, **settings)
    inference, management = bearer("given-inference"), bearer("given-management")
    query = {"url": "shop.mar", "route": "/api", "initial_workers": 1}
    assert server.management.post("/models", params=query, headers=management).status_code == 200

    assert server.inference.get("/api/items/5", headers=inference).json()["key"] == 5
    for path, headers in (("/api/items/5", management), ("/api/items/5", {}), ("/apis", inference)):
        assert server.inference.get(path, headers=headers).json() == FAILED
