"""``modelserver status`` against servers that a test makes up; tests/e2e/test_events.py has a real one."""

import httpx
import pytest

from modelserver.tools.status import command

URL = "http://127.0.0.1:1"
_EMPTY = {"events": []}


@pytest.fixture
def serve(monkeypatch):
    """Answers paths with documents, others with 404; returns the paths that are requested."""

    def start(documents):
        requested = []

        def answer(request):
            requested.append(request.url.path)
            document = documents.get(request.url.path)
            if isinstance(document, httpx.Response | Exception):
                if isinstance(document, Exception):
                    raise document
                return document
            place = request.url.params.get("next_page_token")
            if isinstance(document, list) and place is not None:
                document = document[int(place)]
            return httpx.Response(404) if document is None else httpx.Response(200, json=document)

        client = httpx.Client(transport=httpx.MockTransport(answer), base_url=URL)
        monkeypatch.setattr(command, "client_of", lambda *_: client)
        return requested

    return start


def model(name, ready=True):
    workers = [{"status": "READY" if ready else "STARTING"}]
    return {"modelName": name, "modelVersion": "1.0", "minWorkers": 1, "workers": workers}


def test_all_versions_of_all_pages_are_read(serve, capsys):
    """A version fails beside another one that is parked; a model may be unregistered meanwhile."""
    pages = [
        {"models": [{"modelName": "a"}, {"modelName": "a"}], "nextPageToken": "1"},
        {"models": [{"modelName": "b c"}, {"modelName": "gone"}]},
    ]
    parking = {"budget": 10, "used": 5, "models": {"parked": ["a 1.0"], "loaded": ["b c 1.0"]}}
    parked = model("a") | {"minWorkers": 0, "workers": [], "parking": {"state": "parked"}}
    failing = model("a", ready=False) | {"modelVersion": "2.0"}
    documents = {"/models": pages, "/parking": parking, "/events": _EMPTY}
    requested = serve(documents | {"/models/a/all": [parked, failing], "/models/b c/all": [model("b c")]})

    assert command.main(["--management", URL]) == 1
    head, trouble = [line for line in capsys.readouterr().out.splitlines() if line][:2]
    assert (head, trouble) == (f"{URL}: 3 models, 1 thing fails", "FAILS  a 2.0: no worker is loaded")
    assert [path for path in requested if path.endswith("/all")] == [
        f"/models/{name}/all" for name in ("a", "b c", "gone")
    ]


def test_what_fails_comes_first(serve, capsys):
    """A server without events and models on demand is read, too."""
    wish = model("a") | {"autoscaling": {"wish": 2}}
    serve(
        {
            "/models": {"models": [{"modelName": "a"}, {"modelName": "b"}]},
            "/models/a/all": [wish],
            "/models/b/all": [model("b", ready=False)],
        }
    )

    assert command.main(["--management", URL]) == 1
    head, first, _, second, *_ = [line for line in capsys.readouterr().out.splitlines() if line]
    assert head == f"{URL}: 2 models, 1 thing fails"
    assert first == "FAILS  b 1.0: no worker is loaded"
    assert second == "LOOK   a 1.0: autoscaling wants 2 workers, 1 are ready"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (httpx.ConnectError("Connection refused"), "cannot be reached: Connection refused"),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "; --ca-file names the file"),
        (httpx.Response(401, json={"message": "no token"}), "answers 401"),
        (httpx.Response(200, text="<html>"), "cannot be reached"),
    ],
    ids=["nobody", "an unknown certificate", "without a token", "another server"],
)
def test_server_that_cannot_be_read_is_2(serve, capsys, answer, text):
    serve({"/models": answer})

    assert command.main(["--management", URL]) == 2
    assert text in capsys.readouterr().err


def test_wrong_command_line_is_2(capsys, tmp_path):
    assert command.main(["--management", URL, "--token-file", str(tmp_path / "none")]) == 2
    with pytest.raises(SystemExit) as ended:
        command.main(["--nonsense"])
    assert ended.value.code == 2
