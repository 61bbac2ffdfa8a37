import io
import json

import pytest
from PIL import Image

from modelserver.ext.recording.entries import pack
from modelserver.ext.recording.file import Writer
from modelserver.tools.migrate.archives import Archive
from modelserver.tools.migrate.calls import MigrationError, Probe
from modelserver.tools.migrate.requests import Subject, changes_state, in_folder, inputs, png, requests_of
from modelserver.tools.migrate.servers import ServedVersion

VERSION = ServedVersion("m 1", "1.0", "m.mar")


def built_in(handler="", envelope=None, **places):
    return requests_of("builtin", [Subject(VERSION, Archive("m.mar", handler, places=places))], envelope)


def test_built_in_requests_change_nothing():
    """No request changes a running TorchServe; names are unique and paths are escaped."""
    calls = built_in(envelope="kservev2", instances="here")

    assert [call for call in calls if changes_state(call)] == []
    assert len({call.name for call in calls}) == len(calls)
    paths = {call.path for call in calls}
    assert {"/predictions/m%201", "/models/m%201/all", "/v2/models/m%201/infer"} <= paths


def test_versions_share_the_requests_without_a_version():
    other = Subject(ServedVersion("m 1", "2.0", "m.mar"), Archive("m.mar", ""))
    calls = requests_of("builtin", [Subject(VERSION, Archive("m.mar", "")), other], None)
    paths = [call.path for call in calls if call.method == "GET"]

    assert len({(call.port, call.method, call.path, call.headers, call.body) for call in calls}) == len(calls)
    assert paths.index("/ping") < paths.index("/models/m%201") < paths.index("/models/m%201/2.0")


@pytest.mark.parametrize(
    ("handler", "types"),
    [
        ("image_classifier", ["image/png"]),
        ("text_classifier", ["text/plain"]),
        ("base_handler", ["application/json"]),
        ("own.py", ["application/json", "text/plain", "application/json", "image/png"]),
    ],
)
def test_inputs_are_chosen_by_handler(handler, types):
    """Pillow reads the picture."""
    assert [kind for _, kind, _ in inputs(handler)] == types
    picture = Image.open(io.BytesIO(png()))
    picture.load()
    assert (picture.mode, picture.size) == ("RGB", (64, 64))


@pytest.mark.parametrize(
    ("envelope", "places", "protocols"),
    [(None, {}, set()), (None, {"instances": "x"}, {"v1"}), ("kserve", {}, {"v1"}), ("kservev2", {}, {"v2"})],
)
def test_protocols_get_requests_where_they_are_used(envelope, places, protocols):
    calls = built_in(envelope=envelope, **places)
    posted = {call.path.split("/")[1] for call in calls if call.method == "POST"}

    assert posted & {"v1", "v2"} == protocols


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/models?url=x", True),
        ("DELETE", "/models/m", True),
        ("POST", "/workflows", True),
        ("GET", "/token?type=inference", True),
        ("GET", "/models/m", False),
        ("POST", "/models/m/invoke", False),
        ("POST", "/predictions/m", False),
    ],
)
def test_what_changes_the_state_of_a_server(method, path, expected):
    assert changes_state(Probe("", "management", method, path)) is expected


def test_files_are_posted_to_the_model_of_their_folder(tmp_path):
    for name, text in (("m/a.json", "[1]"), ("m/b", "raw"), ("m/c.txt", "v1"), ("README.md", "no request")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    entries = [
        {"path": "/v1/models/m:predict", "file": "m/c.txt", "headers": {"content-type": "application/json"}},
        {"path": "/models", "port": "management"},
        {"path": "/predictions/m", "body": "x", "method": "PUT"},
    ]
    (tmp_path / "requests.json").write_text(json.dumps(entries))

    json_type, octets = ((("Content-Type", f"application/{kind}"),) for kind in ("json", "octet-stream"))
    own_type, v1 = (("content-type", "application/json"),), "/v1/models/m:predict"
    assert in_folder(tmp_path) == [
        Probe("m/a.json", "inference", "POST", "/predictions/m", json_type, b"[1]"),
        Probe("m/b", "inference", "POST", "/predictions/m", octets, b"raw"),
        Probe(f"POST {v1}", "inference", "POST", v1, own_type, b"v1"),
        Probe("GET /models", "management", "GET", "/models"),
        Probe("PUT /predictions/m", "inference", "PUT", "/predictions/m", (), b"x"),
    ]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[", "requests.json: Expecting value"),
        ("{}", "a list of requests is needed"),
        ('[{"path": "x"}]', "request 1: an object with a path"),
        ("[5]", "request 1: an object with a path"),
        ('[{"path": "/x", "file": "no"}]', "request 1: there is no file no"),
        ('[{"path": "/x", "port": "grpc"}]', "request 1: port is one of"),
        ('[{"path": "/x", "headers": {"a": 1}}]', "request 1: headers is an object of texts"),
        ('[{"path": "/x", "boby": ""}]', "request 1: unknown: boby"),
        ('[{"path": "/x y"}]', "request 1: spaces and letters beyond ASCII in a path"),
        ('[{"path": "/x", "body": {"a": 1}}]', "request 1: method, file and body are texts"),
        ('[{"path": "/x", "body": "x", "file": "requests.json"}]', "request 1: either a file or a body"),
        ("[]", "there are neither MODEL/NAME.EXT nor requests.json"),
    ],
)
def test_what_is_wrong_with_an_index_is_reported(tmp_path, index, message):
    (tmp_path / "requests.json").write_text(index)
    with pytest.raises(MigrationError, match=message):
        in_folder(tmp_path)
    for source in ("nowhere", __file__):
        with pytest.raises(MigrationError, match="builtin, a folder or a recording"):
            requests_of(source, [], None)


def test_recorded_requests_are_sent_as_they_came(tmp_path, make_call):
    path = tmp_path / "traffic.msr"
    headers = [(b"A", b"b"), (b"Content-Length", b"1")]
    posted = make_call(target="/predictions/m", headers=headers, body=b"x")
    with path.open("wb", buffering=0) as file:
        Writer(file).write(pack([posted, make_call(method=b"GET", target="/ping", headers=[], body=b"")]))

    assert requests_of(str(path), [], None) == [
        Probe("POST /predictions/m", "inference", "POST", "/predictions/m", (("A", "b"),), b"x"),
        Probe("GET /ping", "inference", "GET", "/ping"),
    ]


def test_a_recording_that_was_cut_off(tmp_path, make_call):
    path = tmp_path / "traffic.msr"
    call = make_call(method=b"GET", target="/ping", headers=[], body=b"")
    with path.open("wb", buffering=0) as file:
        writer = Writer(file)
        empty = file.tell()
        for _ in range(2):
            writer.write(pack([call]))
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    message = []
    calls = requests_of(str(path), [], None, message.append)

    assert [call.path for call in calls] == ["/ping"]
    assert message == [f"{path} ends early, it was cut off in the middle: what was recorded before is asked."]
    for left, wrong in ((empty + 9, "ends early, it was cut off"), (empty, "there are no requests")):
        path.write_bytes(content[:left])
        with pytest.raises(MigrationError, match=wrong):
            requests_of(str(path), [], None)
