"""What both servers are asked, in chapters that leave nothing behind."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tests.differential import config_steps, handler_steps, workflow_steps
from tests.differential.calls import (
    Settle,
    Step,
    Together,
    get,
    post,
    predict,
    register,
    unregister,
)

from modelserver.tools.migrate.calls import Call, Port

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT: Final = "text/plain"
JSON: Final = "application/json"

SERVERS: Final[dict[str, dict[str, str]]] = {
    "open": {"enable_model_api": "true"},
    "closed": {"enable_model_api": "false"},
    "workflows": {"enable_model_api": "true", "unregister_model_timeout": "5"},
    "tabled": config_steps.settings(),
    "undecoded": {"enable_model_api": "true", "decode_input_request": "false"},
    "measured": {
        "enable_model_api": "true",
        "metrics_mode": "prometheus",
        "model_metrics_auto_detect": "true",
    },
    **{
        name: {"enable_model_api": "true", "service_envelope": name}
        for name in ("body", "json", "kserve", "kservev2")
    },
}
"""Servers by name, with what their configurations say besides."""
SETTINGS: Final = {
    "disable_token_authorization": "true",
    "max_request_size": "100000",
    "install_py_dep_per_model": "false",
    "job_queue_size": "100",
}
"""Of both servers; the rest are their defaults."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Steps that belong together, and the server of :data:`SERVERS` that is asked.

    ``plain``: quick enough for every run of the tests.
    """

    name: str
    title: str
    steps: tuple[Step, ...]
    server: str = "open"
    plain: bool = True

    @property
    def calls(self) -> list[Call]:
        """All calls in order."""
        found: list[Call] = []
        for step in self.steps:
            if isinstance(step, Together):
                found += step.calls
            elif isinstance(step, Call):
                found.append(step)
        return found


@cache
def chapters() -> tuple[Chapter, ...]:
    """All of them; pictures are drawn once."""
    made = (
        Chapter("outputs", "What handlers return", tuple(_outputs())),
        Chapter("inputs", "What handlers are given", tuple(_inputs())),
        Chapter("responses", "Status and headers of a handler's own", tuple(_responses())),
        Chapter("failures", "Handlers that fail", tuple(_failures())),
        Chapter("batches", "Several requests in a batch", tuple(_batches())),
        Chapter("pictures", "image_classifier", tuple(_picture_calls())),
        Chapter("registration", "Registering", tuple(_registration())),
        Chapter("scaling", "Scaling, describing and listing", tuple(_scaling())),
        Chapter("versions", "Versions", tuple(_versions())),
        Chapter("layouts", "Layouts of archives", tuple(_layouts())),
        Chapter("manifests", "Manifests", tuple(_manifests())),
        Chapter("broken", "Broken archives", tuple(_broken())),
        Chapter("configurations", "model-config.yaml", tuple(config_steps.keys())),
        Chapter("table", "model-config.yaml and `models=`", tuple(config_steps.table()), "tabled"),
        Chapter("streams", "Answers in parts", tuple(_streams())),
        Chapter("customized", "Handlers that describe themselves", tuple(_customized())),
        Chapter("routes", "Routes and methods", tuple(_routes())),
        *(
            Chapter(f"workflow_{name}", f"Workflows: {name}", tuple(steps()), "workflows", plain=False)
            for name, steps in workflow_steps.CHAPTERS.items()
        ),
        Chapter("closed", "Without the model API", tuple(_closed()), "closed"),
        Chapter("styles", "How handlers are found and called", tuple(handler_steps.styles())),
        Chapter("facts", "The context and the worker", tuple(handler_steps.facts())),
        Chapter("networks", "Classes that extend BaseHandler", tuple(handler_steps.networks()), plain=False),
        Chapter("builtin", "Segmenter, detector, texts", tuple(handler_steps.built_in()), plain=False),
        Chapter("stateful", "Sequences", tuple(handler_steps.stateful())),
        Chapter("continuous", "Continuous and asynchronous", tuple(handler_steps.continuous())),
        Chapter("tickets", "Job tickets", tuple(handler_steps.tickets())),
        Chapter("undecoded", "Inputs that are not decoded", tuple(handler_steps.undecoded()), "undecoded"),
        Chapter(
            "measured", "What handlers measure", tuple(handler_steps.measured()), "measured", plain=False
        ),
        *(
            Chapter(f"envelope_{name}", f"Envelope {name}", tuple(handler_steps.enveloped(name)), name, False)
            for name in ("body", "json", "kserve", "kservev2")
        ),
    )
    for chapter in made:
        names = [call.name for call in chapter.calls]
        assert len(names) == len(set(names)), chapter.name
    return made


def _outputs() -> Iterator[Step]:
    yield register("register", "returns.mar")
    for name in (
        *("text", "empty text", "unicode", "bytes", "bytearray", "empty bytes", "dict", "empty dict"),
        *("ordered dict", "integer keys", "unicode dict", "nested", "list", "empty list", "tuple", "int"),
        *("negative", "big", "float", "whole float", "small float", "nan", "infinity", "true", "false"),
        *("none", "set", "object", "bytes in dict", "complex", "escapes", "escapes in dict"),
        *("surrogate in dict", "numpy scalar", "numpy array", "generator", "subclass of str"),
        "subclass of dict",
    ):
        yield predict(name, "returns", name, content_type=TEXT)
    yield unregister("unregister", "returns")
    yield register("register whole", "whole.mar")
    for name in (
        *("list", "subclass of list", "tuple", "dict", "text", "bytes", "none", "number"),
        *("generator", "empty list", "two"),
    ):
        yield predict(f"whole {name}", "whole", name, content_type=TEXT)
    yield unregister("unregister whole", "whole")


def _inputs() -> Iterator[Step]:
    yield register("register", "tells.mar")
    yield from _bodies()
    yield from _forms()
    yield from _protocols()
    yield unregister("unregister", "tells")


def _bodies() -> Iterator[Step]:
    encoded = base64.b64encode(bytes(range(10))).decode()
    for name, body, content_type in (
        ("json object", '{"a": [1, 2.5, null, true, "x"]}', JSON),
        ("json list", "[1, 2]", JSON),
        ("json text", '"text"', JSON),
        ("json number", "5", JSON),
        ("json null", "null", JSON),
        ("json false", "false", JSON),
        ("json empty object", "{}", JSON),
        ("json empty", "", JSON),
        ("json broken", '{"a": ', JSON),
        ("json twice", "{}{}", JSON),
        ("json nan", '{"a": NaN}', JSON),
        ("json double key", '{"a": 1, "a": 2}', JSON),
        ("json with bom", b"\xef\xbb\xbf{}", JSON),
        ("json not utf-8", b'{"a": "\xff"}', JSON),
        ("json utf-16", '{"a": 1}'.encode("utf-16"), JSON),
        ("json unicode", '{"größe": "模型"}', JSON),
        ("json base64", json.dumps({"instances": [{"b64": encoded}]}), JSON),
        ("json with charset", '{"a": 1}', f"{JSON}; charset=utf-8"),
        ("json with capitals", '{"a": 1}', "Application/JSON"),
        ("json suffix", '{"a": 1}', "application/vnd.api+json"),
        ("text", "some text", TEXT),
        ("text unicode", "größe", f"{TEXT}; charset=utf-8"),
        ("text latin-1", "größe".encode("latin-1"), f"{TEXT}; charset=iso-8859-1"),
        ("text empty", "", TEXT),
        ("text csv", "a,b\n1,2\n", "text/csv"),
        ("text of no kind", "x", "textual"),
        ("octets", b"\x00\x01\xff", "application/octet-stream"),
        ("picture", b"\x89PNG\r\n", "image/png"),
        ("odd type", b"x", "nonsense"),
    ):
        yield predict(name, "tells", body, content_type=content_type)
    yield predict("no type", "tells", b"raw bytes")
    yield predict("no type, json", "tells", b'{"a": 1}')
    yield predict("nothing at all", "tells")
    yield replace(predict("header of the client", "tells"), headers=(("X-Asked", "yes"),))
    yield replace(
        predict("headers that are the server's", "tells"),
        headers=(("explain", "True"), ("url_path", "mine"), ("describe", "True")),
    )
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        yield Call(
            f"by {method}", "inference", method, "/predictions/tells", (("Content-Type", TEXT),), b"text"
        )
    yield Call("by HEAD", "inference", "HEAD", "/predictions/tells")


def _forms() -> Iterator[Step]:
    urlencoded = "application/x-www-form-urlencoded"
    for name, body in (
        ("form", "data=one&other=two"),
        ("form repeated", "data=one&data=two"),
        ("form escaped", "data=a%20b%2Bc+d&%C3%BC=x"),
        ("form blank", "data=&other"),
        ("form of curl -d", '{"a": 1}'),
    ):
        yield predict(name, "tells", body, content_type=urlencoded)
    yield predict("form empty", "tells", "", content_type=urlencoded)
    parts: dict[str, tuple[tuple[str, str, bytes], ...]] = {
        "multipart file": (('name="data"; filename="a.bin"', "application/octet-stream", b"\x00\xff"),),
        "multipart json": (('name="data"; filename="a.json"', JSON, b'{"a": 1}'),),
        "multipart text file": (('name="data"; filename="a.txt"', TEXT, b"text"),),
        "multipart without type": (('name="data"; filename="a.bin"', "", b"xy"),),
        "multipart field": (('name="data"', "", b"field"),),
        "multipart field with type": (('name="data"', JSON, b'{"a": 1}'),),
        "multipart two": (
            ('name="data"; filename="a"', TEXT, b"1"),
            ('name="other"; filename="b"', TEXT, b"2"),
        ),
        "multipart repeated": (
            ('name="data"; filename="a"', TEXT, b"1"),
            ('name="data"; filename="b"', TEXT, b"2"),
        ),
        "multipart body": (('name="body"; filename="a"', TEXT, b"1"),),
        "multipart empty file": (('name="data"; filename="a"', TEXT, b""),),
        "multipart unicode name": (('name="größe"; filename="ä.txt"', TEXT, b"x"),),
    }
    for name, items in parts.items():
        yield predict(name, "tells", _multipart(items), content_type="multipart/form-data; boundary=XyZ")


def _multipart(items: tuple[tuple[str, str, bytes], ...]) -> bytes:
    body = b""
    for disposition, content_type, content in items:
        body += f"--XyZ\r\nContent-Disposition: form-data; {disposition}\r\n".encode()
        body += f"Content-Type: {content_type}\r\n".encode() if content_type else b""
        body += b"\r\n" + content + b"\r\n"
    return body + b"--XyZ--\r\n"


def _protocols() -> Iterator[Step]:
    for name, path in (
        ("predictions with version", "/predictions/tells/1.0"),
        ("predictions with rest", "/predictions/tells/1.0/v1/chat/completions"),
        ("predictions with slash", "/predictions/tells/"),
        ("predictions with query", "/predictions/tells?a=1&b=2"),
        ("predictions escaped", "/predictions/%74ells"),
        ("explanations", "/explanations/tells"),
        ("explanations with version", "/explanations/tells/1.0"),
        ("v1 predict", "/v1/models/tells:predict"),
        ("v1 explain", "/v1/models/tells:explain"),
        ("v2 infer", "/v2/models/tells/infer"),
        ("v2 explain", "/v2/models/tells/explain"),
        ("invocations", "/invocations?model_name=tells&a=1"),
        ("invoke", "/models/tells/invoke?a=1"),
        ("legacy", "/tells/predict?a=1&a=2&b"),
        ("legacy with version", "/tells/1.0/predict"),
    ):
        yield post(name, path, '{"x": [1]}', content_type=JSON)
    yield post(
        "invocations by form", "/invocations", "model_name=tells&x=1",
        content_type="application/x-www-form-urlencoded",
    )  # fmt: skip
    for name, body in (
        ("v1 instances", '{"instances": [1, {"a": 2}]}'),
        ("v1 one instance", '{"instances": ["x"], "signature_name": "s"}'),
        ("v1 no instances", '{"instances": []}'),
        ("v1 broken", '{"instances": [1'),
        ("v1 list", "[1, 2]"),
    ):
        yield post(name, "/v1/models/tells:predict", body, content_type=JSON)
    yield post("invocations of nobody", "/invocations", "{}", content_type=JSON)


def _responses() -> Iterator[Step]:
    yield register("register", "responds.mar")
    cases: dict[str, tuple[list[list[object]], object]] = {
        "nothing": ([], "done"),
        "status 201": ([["set_response_status", 201]], "done"),
        "status 404": ([["set_response_status", 404]], "not found here"),
        "status 500": ([["set_response_status", 500]], {"why": "so"}),
        "status 599": ([["set_response_status", 599]], "odd"),
        "status 413": ([["set_response_status", 413]], "large"),
        "status with phrase": ([["set_response_status", 202, "Well then"]], "done"),
        "status twice": ([["set_response_status", 201], ["set_response_status", 203]], "done"),
        "all statuses": ([["set_all_response_status", 206, "Some"]], "done"),
        "content type": ([["set_response_content_type", "text/html"]], "<p>"),
        "content type of json": ([["set_response_content_type", "application/json"]], {"a": 1}),
        "content type with charset": (
            [["set_response_content_type", "text/plain; charset=utf-8"]],
            "größe",
        ),
        "content type as header": ([["set_response_header", "content-type", "image/png"]], "x"),
        "content type as Header": ([["set_response_header", "Content-Type", "image/png"]], "x"),
        "header": ([["set_response_header", "X-Mine", "yes"]], "done"),
        "two headers": (
            [["set_response_header", "X-Mine", "1"], ["set_response_header", "X-Other", "2"]],
            "done",
        ),
        "header twice": (
            [["set_response_header", "X-Mine", "1"], ["set_response_header", "X-Mine", "2"]],
            "done",
        ),
        "header with spaces": ([["set_response_header", "X-Mine", " a  b "]], "done"),
        "header empty": ([["set_response_header", "X-Mine", ""]], "done"),
        "cache header": ([["set_response_header", "Cache-Control", "max-age=60"]], "done"),
    }
    for name, (do, answer) in cases.items():
        yield predict(name, "responds", json.dumps({"do": do, "answer": answer}), content_type=JSON)
    yield unregister("unregister", "responds")


def _failures() -> Iterator[Step]:
    yield register("register", "fails.mar")
    for name in (
        *("value", "key", "runtime", "assertion", "not implemented", "os", "stop iteration", "unicode"),
        *("memory", "cuda", "cuda word", "out of resources", "default code", "empty message"),
        "unicode message",
    ):
        yield predict(name, "fails", name, content_type=TEXT)
    for code in (
        200,
        204,
        302,
        400,
        401,
        403,
        404,
        408,
        409,
        413,
        418,
        422,
        429,
        500,
        501,
        503,
        504,
        507,
        599,
    ):
        yield predict(f"code {code}", "fails", f"code {code}", content_type=TEXT)
    for name, path in (
        ("v1 value", "/v1/models/fails:predict"),
        ("v2 value", "/v2/models/fails/infer"),
        ("explain value", "/explanations/fails"),
        ("invoke value", "/models/fails/invoke"),
    ):
        yield post(name, path, "value", content_type=TEXT)
    yield post("v1 code", "/v1/models/fails:predict", "code 422", content_type=TEXT)
    for name in ("exit", "os exit"):
        yield predict(name, "fails", name, content_type=TEXT)
        yield Settle("fails", 1)
        yield predict(f"after {name}", "fails", "this", content_type=TEXT)
    yield unregister("unregister", "fails")
    yield predict("unknown model", "nobody")
    yield predict("unknown model with version", "nobody/2.0")
    yield register("register counts", "counts.mar", response_timeout=1)
    yield predict("too slow", "counts", "sleep", content_type=TEXT)
    yield Settle("counts", 1)
    yield predict("after too slow", "counts", "quick", content_type=TEXT)
    yield unregister("unregister counts", "counts")


def _batches() -> Iterator[Step]:
    yield register("register", "counts.mar", batch_size=3, max_batch_delay=1500)
    yield predict("alone", "counts", "one", content_type=TEXT)
    for kind, bodies in (
        ("three", ("a", "b", "c")),
        ("one raises", ("innocent", "raise", "innocent")),
        ("one too few", ("short", "short", "short")),
    ):
        yield Together(
            tuple(
                predict(f"{kind} {place}", "counts", body, content_type=TEXT)
                for place, body in enumerate(bodies, 1)
            )
        )
    yield Together(
        (
            predict("mixed text", "counts", "a", content_type=TEXT),
            predict("mixed json", "counts", '{"x": 1}', content_type=JSON),
            predict("mixed list", "counts", "[1]", content_type=JSON),
        )
    )
    yield unregister("unregister", "counts")


def _picture_calls() -> Iterator[Step]:
    from PIL import Image

    def picture(colour: tuple[int, int, int], kind: str = "PNG", size: int = 256, mode: str = "RGB") -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (size, size), colour).convert(mode).save(file, kind)
        return file.getvalue()

    red = picture((255, 0, 0))
    png = "image/png"
    for model in ("tiny_named", "tiny_numbered"):
        yield register(f"register {model}", f"{model}.mar")
        yield predict(f"{model} red", model, red, content_type=png)
    yield predict("without type", "tiny_named", red)
    yield predict("blue", "tiny_named", picture((0, 0, 255)), content_type=png)
    yield predict("small", "tiny_named", picture((255, 0, 0), size=20), content_type=png)
    yield predict("grey", "tiny_named", picture((90, 90, 90), mode="L"), content_type=png)
    yield predict("bitmap", "tiny_named", picture((255, 0, 0), "BMP", 100), content_type="image/bmp")
    yield predict(
        "in a form", "tiny_named", _multipart((('name="data"; filename="a.png"', png, red),)),
        content_type="multipart/form-data; boundary=XyZ",
    )  # fmt: skip
    yield predict(
        "in a body part", "tiny_named", _multipart((('name="body"; filename="a.png"', png, red),)),
        content_type="multipart/form-data; boundary=XyZ",
    )  # fmt: skip
    yield predict("base64 text", "tiny_named", base64.b64encode(red), content_type=TEXT)
    yield post(
        "v1 base64", "/v1/models/tiny_named:predict",
        json.dumps({"instances": [{"b64": base64.b64encode(red).decode()}] * 2}), content_type=JSON,
    )  # fmt: skip
    yield predict("no picture", "tiny_named", b"no picture")
    yield predict("nothing", "tiny_named")
    yield predict("cut off", "tiny_named", red[:60], content_type=png)
    yield Call("by PUT", "inference", "PUT", "/predictions/tiny_named", (), red)
    for model in ("tiny_named", "tiny_numbered"):
        yield unregister(f"unregister {model}", model)


def _manage(name: str, method: str, path: str, body: str = "", **headers: str) -> Call:
    return replace(post(name, path, body, **headers), port="management", method=method)


def _registration() -> Iterator[Step]:
    yield _manage("without url", "POST", "/models")
    yield _manage("empty url", "POST", "/models?url=")
    yield _manage("absent", "POST", "/models?url=absent.mar")
    yield _manage("parent", "POST", "/models?url=../plain.mar")
    yield _manage("parent inside", "POST", "/models?url=a/../plain.mar")
    yield _manage("absolute file", "POST", "/models?url=/etc/passwd")
    yield _manage("file url absent", "POST", "/models?url=file:///nowhere/plain.mar")
    yield _manage("other scheme", "POST", "/models?url=s3://bucket/absent.mar")
    yield _manage("refused host", "POST", "/models?url=http://127.0.0.1:9/plain.mar")
    yield _manage("wrong runtime", "POST", "/models?url=plain.mar&runtime=java")
    yield _manage("wrong runtime of nothing", "POST", "/models?url=absent.mar&runtime=java")
    yield _manage("without workers", "POST", "/models?url=plain.mar")
    yield _manage("again", "POST", "/models?url=plain.mar")
    yield _manage("again with workers", "POST", "/models?url=plain.mar&initial_workers=1")
    yield predict("no worker", "plain")
    yield predict("no worker, version", "plain/1.0")
    yield post("no worker, v1", "/v1/models/plain:predict", '{"instances": [1]}', content_type=JSON)
    yield get("ping without workers", "inference", "/ping")
    yield unregister("unregister", "plain")
    yield unregister("unregister again", "plain")
    yield register("synchronous", "plain.mar")
    yield predict("predict", "plain")
    yield unregister("unregister synchronous", "plain")
    yield register("asynchronous", "plain.mar", synchronous="false")
    yield Settle("plain", 1)
    yield unregister("unregister asynchronous", "plain")
    yield register("two workers", "plain.mar", initial_workers=2)
    yield unregister("unregister two workers", "plain")
    yield register("negative workers", "plain.mar", initial_workers=-1)
    yield unregister("unregister negative workers", "plain")
    yield register("no number of workers", "plain.mar", initial_workers="many")
    yield unregister("unregister no number", "plain")
    yield register("renamed", "plain.mar", model_name="other", initial_workers=0)
    yield get("describe renamed", "management", "/models/other")
    yield unregister("unregister renamed", "other")
    yield register("name with signs", "plain.mar", model_name="a b ü", initial_workers=0)
    yield get("list name with signs", "management", "/models")
    yield unregister("unregister name with signs", "a b ü")
    yield from _registration_values()
    yield from _registration_bodies()
    yield register("fails to import", "no_import.mar")
    yield Settle("no_import", -1)
    yield get("describe after failure to import", "management", "/models/no_import")
    yield register("fails to start", "no_start.mar")
    yield Settle("no_start", -1)
    yield get("describe after failure to start", "management", "/models/no_start")
    yield register("handler given", "entry_module.mar", handler="entry:go")
    yield predict("handler given, predict", "entry_module")
    yield unregister("unregister handler given", "entry_module")


def _registration_values() -> Iterator[Step]:
    for name, parameters in (
        ("batch", {"batch_size": 8, "max_batch_delay": 20}),
        ("timeouts", {"response_timeout": 7, "startup_timeout": 9}),
        ("bad numbers", {"batch_size": "x", "max_batch_delay": "y", "response_timeout": "z"}),
        ("empty numbers", {"batch_size": "", "max_batch_delay": ""}),
        ("zero", {"batch_size": 0, "max_batch_delay": 0}),
        ("negative", {"batch_size": -5, "max_batch_delay": -7}),
        ("minus one", {"batch_size": -1, "max_batch_delay": -100}),
        ("unknown parameter", {"what": "ever"}),
        ("capitals", {"synchronous": "TRUE", "Batch_Size": 3}),
        ("runtime", {"runtime": "python"}),
        ("runtime python3", {"runtime": "python3"}),
        ("runtime in capitals", {"runtime": "PYTHON"}),
    ):
        yield register(f"values: {name}", "plain.mar", **{"initial_workers": 0, **parameters})
        yield get(f"describe values: {name}", "management", "/models/plain")
        yield unregister(f"unregister values: {name}", "plain")


def _registration_bodies() -> Iterator[Step]:
    for name, body in (
        ("json", '{"url": "plain.mar", "batch_size": 4, "max_batch_delay": 10}'),
        (
            "json texts",
            '{"url": "plain.mar", "batch_size": "4", "max_batch_delay": "10", "synchronous": "true"}',
        ),
        ("json without delay", '{"url": "plain.mar", "batch_size": 4}'),
        ("json with null", '{"url": "plain.mar", "model_name": null, "max_batch_delay": 10}'),
    ):
        yield _manage(f"body: {name}", "POST", "/models?url=absent.mar", body, content_type=JSON)
        yield get(f"describe body: {name}", "management", "/models/plain")
        yield unregister(f"unregister body: {name}", "plain")
    yield _manage("body: json without url", "POST", "/models?url=plain.mar", "{}", content_type=JSON)
    yield _manage("body: json broken", "POST", "/models", '{"url": ', content_type=JSON)
    yield _manage("body: json empty", "POST", "/models?url=plain.mar", "", content_type=JSON)
    yield _manage("body: json list", "POST", "/models", "[]", content_type=JSON)
    form = "application/x-www-form-urlencoded"
    yield _manage("body: form", "POST", "/models", "url=plain.mar", content_type=form)


def _scaling() -> Iterator[Step]:
    yield get("list nothing", "management", "/models")
    yield register("register", "plain.mar", initial_workers=0)
    yield get("describe", "management", "/models/plain")
    yield get("describe version", "management", "/models/plain/1.0")
    yield get("describe all", "management", "/models/plain/all")
    yield get("describe unknown", "management", "/models/nobody")
    yield get("describe unknown, all", "management", "/models/nobody/all")
    yield get("describe unknown version", "management", "/models/plain/9")
    yield get("describe with query", "management", "/models/plain?model_version=9")
    yield get("kserve", "management", "/v1/models/plain")
    yield get("kserve unknown", "management", "/v1/models/nobody")
    yield get("kserve with action", "management", "/v1/models/plain:predict")
    put = "PUT"
    yield _manage("scale up", put, "/models/plain?min_worker=1&synchronous=true")
    yield predict("predict", "plain")
    yield Settle("plain", 1)
    yield get("describe one worker", "management", "/models/plain")
    yield get("kserve with worker", "management", "/v1/models/plain")
    yield _manage("scale again", put, "/models/plain?min_worker=1&synchronous=true")
    yield _manage("scale to two", put, "/models/plain?min_worker=2&max_worker=3&synchronous=true")
    yield Settle("plain", 2)
    yield get("describe two workers", "management", "/models/plain")
    yield _manage("scale version", put, "/models/plain/1.0?min_worker=1&synchronous=true")
    yield _manage(
        "scale version by query", put, "/models/plain?model_version=1.0&min_worker=1&synchronous=true"
    )
    yield _manage("scale unknown version by query", put, "/models/plain?model_version=9&min_worker=1")
    yield _manage("scale nothing said", put, "/models/plain?synchronous=true")
    yield _manage("scale asynchronously", put, "/models/plain?min_worker=2")
    yield Settle("plain", 2)
    yield _manage("scale max below min", put, "/models/plain?min_worker=3&max_worker=2")
    yield _manage("scale max negative", put, "/models/plain?max_worker=-1")
    yield _manage("scale min negative", put, "/models/plain?min_worker=-1&synchronous=true")
    yield _manage("scale no number", put, "/models/plain?min_worker=nan&synchronous=true")
    yield _manage("scale unknown", put, "/models/nobody?min_worker=1")
    yield _manage("scale unknown, wrong bounds", put, "/models/nobody?min_worker=3&max_worker=2")
    yield _manage("scale unknown version", put, "/models/plain/9?min_worker=1")
    yield _manage("scale with ignored parameters", put, "/models/plain?min_worker=1&number_gpu=3&timeout=1")
    yield Settle("plain", 1)
    yield _manage("scale to none", put, "/models/plain?min_worker=0&synchronous=true")
    yield predict("predict with none", "plain")
    yield get("describe none", "management", "/models/plain")
    yield unregister("unregister", "plain")
    for name in ("b", "a", "C"):
        yield register(f"register {name}", "plain.mar", model_name=name, initial_workers=0)
    for name, query in (
        ("list", ""),
        ("list two", "?limit=2"),
        ("list next", "?limit=2&next_page_token=2"),
        ("list exactly", "?limit=3"),
        ("list beyond", "?next_page_token=50"),
        ("list none", "?limit=0"),
        ("list negative", "?limit=-1&next_page_token=-5"),
        ("list many", "?limit=1000"),
        ("list no number", "?limit=x&next_page_token=y"),
        ("list twice", "?limit=1&limit=2"),
    ):
        yield get(name, "management", f"/models{query}")
    for name in ("a", "b", "C"):
        yield unregister(f"unregister {name}", name)


def _versions() -> Iterator[Step]:
    yield register("first", "plain.mar")
    yield register("second", "plain-2.0.mar", initial_workers=0)
    yield register("third", "plain-3.mar", initial_workers=0)
    yield Settle("plain", 1)
    yield get("describe default", "management", "/models/plain")
    yield get("describe second", "management", "/models/plain/2.0")
    yield get("describe 2", "management", "/models/plain/2")
    yield get("list", "management", "/models")
    yield predict("predict", "plain")
    yield predict("predict first", "plain/1.0")
    yield predict("predict second without workers", "plain/2.0")
    yield predict("predict unknown version", "plain/7")
    yield post("v1 predict", "/v1/models/plain:predict", "{}", content_type=JSON)
    yield _manage("scale second", "PUT", "/models/plain/2.0?min_worker=1&synchronous=true")
    yield predict("predict second", "plain/2.0")
    yield _manage("remove default", "DELETE", "/models/plain")
    yield _manage("remove default by version", "DELETE", "/models/plain/1.0")
    yield _manage("remove unknown version", "DELETE", "/models/plain/7")
    yield _manage("set default", "PUT", "/models/plain/2.0/set-default")
    yield _manage("set default again", "PUT", "/models/plain/2.0/set-default")
    yield _manage("set default unknown version", "PUT", "/models/plain/7/set-default")
    yield _manage("set default unknown model", "PUT", "/models/nobody/1.0/set-default")
    yield Settle("plain", 1)
    yield get("describe new default", "management", "/models/plain")
    yield get("list new default", "management", "/models")
    yield predict("predict new default", "plain")
    yield _manage("remove first", "DELETE", "/models/plain/1.0")
    yield predict("predict removed", "plain/1.0")
    yield _manage("remove third", "DELETE", "/models/plain/3")
    yield _manage("remove last", "DELETE", "/models/plain")
    yield get("list at the end", "management", "/models")


def _layouts() -> Iterator[Step]:
    made = (
        ("ours_default", "ours_default.mar"),
        ("ours_store", "ours_store.mar"),
        ("ours_tgz", "ours_tgz.tar.gz"),
        ("ours_folder", "ours_folder"),
        ("theirs_default", "theirs_default.mar"),
        ("theirs_store", "theirs_store.mar"),
        ("theirs_tgz", "theirs_tgz.tar.gz"),
        ("theirs_folder", "theirs_folder"),
        ("ours_tgz", "renamed.model"),
    )
    for model, url in made:
        yield register(f"register {url}", url)
        yield Settle(model, 1)
        yield get(f"describe {url}", "management", f"/models/{model}")
        yield predict(f"predict {url}", model)
        yield unregister(f"unregister {url}", model)
    for model, url in (
        ("entry_module", "entry_module.mar"),
        ("entry_file", "entry_file.mar"),
        ("inner", "wrapped"),
        ("plain", "sub/plain.mar"),
    ):
        yield register(f"register {url}", url)
        yield predict(f"predict {url}", model)
        yield unregister(f"unregister {url}", model)
    yield register("register a zip", "renamed.zip", initial_workers=0)
    yield unregister("unregister a zip", "plain")
    yield register("register a flat tar", "flat.tar.gz", initial_workers=0)
    yield unregister("unregister a flat tar", "flat")


def _manifests() -> Iterator[Step]:
    for name in (
        *("m_old", "m_short", "m_extensions", "m_number_version", "m_float_version"),
        *("m_word_version", "m_null_fields", "m_python3", "m_absent_requirements"),
    ):
        yield register(f"register {name}", f"{name}.mar")
        yield predict(f"predict {name}", name)
        yield unregister(f"unregister {name}", name)
    for name in ("m_bad_runtime", "m_upper_runtime", "m_null_runtime", "m_no_handler"):
        yield register(f"register {name}", f"{name}.mar", initial_workers=0)
        yield unregister(f"unregister {name}", name)
    yield register("register m_no_name", "m_no_name.mar", initial_workers=0)
    yield register("register m_no_name with name", "m_no_name.mar", model_name="named")
    yield predict("predict m_no_name", "named")
    yield unregister("unregister m_no_name", "named")
    yield register("register m_no_manifest", "m_no_manifest.mar", initial_workers=0)
    yield register(
        "m_no_manifest with name and handler", "m_no_manifest.mar", model_name="n", handler="plain"
    )
    yield predict("predict m_no_manifest", "n")
    yield unregister("unregister m_no_manifest", "n")
    yield register("m_no_model with name and handler", "m_no_model.mar", model_name="n", handler="plain.py")
    yield predict("predict m_no_model", "n")
    yield unregister("unregister m_no_model", "n")
    yield register("m_no_handler with handler", "m_no_handler.mar", handler="plain")
    yield predict("predict m_no_handler", "m_no_handler")
    yield unregister("unregister m_no_handler with handler", "m_no_handler")
    yield register("register m_handler_folder", "m_handler_folder.mar")
    yield predict("predict m_handler_folder", "m_handler_folder")
    yield unregister("unregister m_handler_folder", "m_handler_folder")
    yield register("register m_absent_config", "m_absent_config.mar", initial_workers=0)
    yield unregister("unregister m_absent_config", "m_absent_config")


def _broken() -> Iterator[Step]:
    for url in (
        *("b_truncated.mar", "b_list.mar", "b_empty_manifest.mar", "b_model_text.mar", "b_slip.mar"),
        *("b_slip.tar.gz", "b_text.mar", "b_empty.mar", "b_text.tar.gz", "b_cut.mar"),
    ):
        yield register(f"register {url}", url, initial_workers=0)
    yield get("nothing is left", "management", "/models")
    for name in ("b_yaml", "b_yaml_tag"):
        yield register(f"register {name}", f"{name}.mar", initial_workers=0)
        yield unregister(f"unregister {name}", name)
    yield register("wrong handler without workers", "m_wrong_handler.mar", initial_workers=0)
    yield _manage("wrong handler scaled", "PUT", "/models/m_wrong_handler?min_worker=1&synchronous=true")
    yield unregister("unregister wrong handler", "m_wrong_handler")
    yield register("handler of the registration", "plain.mar", handler="absent.py:go", initial_workers=0)
    yield unregister("unregister handler of the registration", "plain")


def _streams() -> Iterator[Step]:
    yield register("register", "streams.mar")
    for parts in ("1", "2", "5"):
        yield predict(f"{parts} parts", "streams", parts, content_type=TEXT)
    yield post("explained in parts", "/explanations/streams", "3", content_type=TEXT)
    yield post("invoked in parts", "/models/streams/invoke", "3", content_type=TEXT)
    yield predict("no number", "streams", "many", content_type=TEXT)
    yield predict("afterwards", "streams", "1", content_type=TEXT)
    yield unregister("unregister", "streams")


def _customized() -> Iterator[Step]:
    path = "/models/describes?customized=true"
    yield register("register", "describes.mar", initial_workers=0)
    yield get("without workers", "management", path)
    yield _manage("scale", "PUT", "/models/describes?min_worker=1&synchronous=true")
    yield Settle("describes", 1)
    yield get("an object", "management", path)
    yield get("of a version", "management", "/models/describes/1.0?customized=true")
    yield get("of all versions", "management", "/models/describes/all?customized=true")
    yield get("in capitals", "management", "/models/describes?customized=TRUE")
    yield get("false", "management", "/models/describes?customized=false")
    yield get("odd", "management", "/models/describes?customized=1")
    yield get("of nobody", "management", "/models/nobody?customized=true")
    for name, body in (
        ("a text", "words"),
        ("nothing", ""),
        ("json in a text", '{"a": 1}'),
        ("an error", "raise"),
        ("headers", "headers"),
    ):
        yield predict(f"say {name}", "describes", body, content_type=TEXT)
        yield get(name, "management", path)
    yield predict("say a list", "describes", "[1, 2]", content_type=JSON)
    yield get("a list", "management", path)
    yield unregister("unregister", "describes")


_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")


def _routes() -> Iterator[Step]:
    yield register("register", "plain.mar")
    asked: dict[Port, dict[str, tuple[str, ...]]] = {
        "inference": {
            "/": _METHODS,
            "/ping": _METHODS,
            "/ping/": ("GET",),
            "/api-description": ("GET", "POST", "OPTIONS"),
            "/predictions": ("GET", "POST", "OPTIONS"),
            "/predictions/": ("POST",),
            "/predictions/plain": ("OPTIONS",),
            "/predictions/plain/1.0": ("OPTIONS",),
            "/predictions/nobody": ("OPTIONS", "GET"),
            "/explanations": ("POST",),
            "/models": ("GET", "POST", "PUT", "DELETE"),
            "/models/plain": ("GET", "PUT", "DELETE", "POST"),
            "/models/plain/1.0": ("GET",),
            "/models/plain/invoke": ("POST", "GET"),
            "/models/plain/1.0/other": ("GET",),
            "/v1/models/plain:other": ("POST",),
            "/v1/models/nobody:predict": ("POST",),
            "/v2/models/nobody/infer": ("POST",),
            "/v2/models/plain/versions/1.0/infer": ("POST",),
            "/nobody/predict": ("POST",),
            "/nowhere": _METHODS,
            "/nowhere/at/all": ("GET",),
            "/PING": ("GET",),
            "/Predictions/plain": ("POST",),
            "//ping": ("GET",),
            "/metrics": ("GET",),
            "/wfpredict": ("POST",),
            "/wfpredict/nobody": ("POST", "GET"),
            "/WFpredict/nobody": ("POST",),
            "/workflows": ("GET", "POST"),
            "/token": ("GET",),
        },
        "management": {
            "/": ("GET", "POST", "OPTIONS"),
            "/api-description": ("GET",),
            "/models": ("PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"),
            "/models/": ("GET",),
            "/models/plain": ("POST", "PATCH", "HEAD", "OPTIONS"),
            "/models/plain/1.0": ("POST", "PATCH", "OPTIONS"),
            "/models/plain/1.0/": ("GET",),
            "/models/plain/1.0/set-default": ("GET", "POST"),
            "/models/plain/1.0/other": ("GET", "PUT"),
            "/models/plain/1.0/set-default/more": ("PUT",),
            "/v1/models/plain": ("POST", "PUT"),
            "/v1/models": ("GET",),
            "/Models": ("GET",),
            "/ping": ("GET",),
            "/predictions/plain": ("POST",),
            "/metrics": ("GET",),
            "/nowhere": ("GET", "POST", "OPTIONS"),
            "/token": ("GET",),
            "/workflows": (*_METHODS,),
            "/workflows/nobody": _METHODS,
            "/workflows/nobody/more": ("GET",),
        },
        "metrics": {
            "/": ("GET", "OPTIONS"),
            "/metrics": ("GET", "POST"),
            "/ping": ("GET",),
            "/models": ("GET",),
            "/nowhere": ("GET",),
        },
    }
    for port, paths in asked.items():
        for path, methods in paths.items():
            for method in methods:
                yield Call(f"{port} {method} {path}", port, method, path)
    yield Call("workflows with parameters", "management", "POST", "/workflows?url=absent.war")
    yield Call("workflows page", "management", "GET", "/workflows?limit=1&next_page_token=3")
    yield predict("too large", "plain", b"x" * 100_001)
    yield predict("as large as can be", "plain", b"x" * 100_000)
    yield Call("delete set-default", "management", "DELETE", "/models/plain/1.0/set-default")
    yield unregister("unregister", "plain")


def _closed() -> Iterator[Step]:
    yield register("register", "plain.mar")
    yield _manage("register nothing", "POST", "/models")
    yield unregister("unregister", "plain")
    yield _manage("unregister version", "DELETE", "/models/plain/1.0")
    yield get("list", "management", "/models")
    yield _manage("scale", "PUT", "/models/plain?min_worker=1")
    yield _manage("set default", "PUT", "/models/plain/1.0/set-default")
    yield get("ping", "inference", "/ping")


def recording_of(chapter: Chapter, answers: dict[str, Any]) -> list[dict[str, Any]]:
    """What is written for a chapter: each call with its answer."""
    return [
        {"name": call.name, "request": call.to_json(), "answer": answers[call.name].to_json()}
        for call in chapter.calls
    ]
