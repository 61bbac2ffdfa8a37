"""What both servers are asked about handlers: how they are called, and what they may do."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tests.differential.calls import Settle, Step, Together, get, post, predict, register, unregister

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelserver.tools.migrate.calls import Call

TEXT: Final = "text/plain"
JSON: Final = "application/json"
_JSON_FILE: Final = (
    f'--XyZ\r\nContent-Disposition: form-data; name="data"; filename="a.json"\r\nContent-Type: {JSON}\r\n\r\n'
)
_FLOATS: Final = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}


def styles() -> Iterator[Step]:
    """Reference 12.2: what a handler string leads to."""
    for url in (
        *("styles", "one_class", "two_classes", "no_handle", "no_initialize"),
        *("class_named", "function_missing", "function_named", "function_file_named"),
    ):
        yield register(f"register {url}", f"{url}.mar")
        yield Settle(url, -1)
        yield predict(f"predict {url}", url)
        yield unregister(f"unregister {url}", url)
    yield register("handler of the registration", "styles.mar", handler="styles.py:other")
    yield predict("predict handler of the registration", "styles")
    yield unregister("unregister handler of the registration", "styles")


def facts() -> Iterator[Step]:
    """Reference 12.1 and 12.4: the context and the process."""
    yield register("register", "facts.mar")
    for question in (
        *("properties", "types", "manifest", "manifest keys", "config", "model name", "same context"),
        *("noted", "ids at the start", "ids", "id", "id of another", "header not there", "all headers"),
        *("type of headers", "processors", "processor", "status", "status set", "response headers"),
        *("response header", "content type", "content type set", "sequence", "sequence keys", "criteria"),
        *("metrics", "equal", "signature", "directory", "files", "path", "module", "environment", "calls"),
        *("pixels", "absent"),
    ):
        yield predict(question, "facts", question, content_type=TEXT)
    for name, headers in (
        ("header as sent", (("X-Asked", "yes"),)),
        ("header in lower case", (("x-asked", "yes"),)),
        ("header twice", (("X-Asked", "one"), ("X-Asked", "two"))),
        ("header of latin-1", (("X-Asked", "gr\xf6\xdfe"),)),
    ):
        asked = predict(name, "facts", "header", content_type=TEXT)
        yield replace(asked, headers=(*asked.headers, *headers))
    asked = predict("property of the client", "facts", "property", content_type=TEXT)
    yield replace(asked, headers=(*asked.headers, ("X-Asked", "yes")))
    yield post("environment by v1", "/v1/models/facts:predict", "ids", content_type=TEXT)
    yield unregister("unregister", "facts")
    yield register("register configured", "facts_configured.mar", initial_workers=None)
    yield Settle("facts_configured", 1)
    for question in ("config", "properties", "manifest"):
        yield predict(f"configured {question}", "facts_configured", question, content_type=TEXT)
    yield unregister("unregister configured", "facts_configured")


def networks() -> Iterator[Step]:
    """Reference 14.1 and 13.5: classes that extend BaseHandler."""
    numbers = json.dumps({"numbers": [1.0, 2.0]})
    for model, body in (
        ("post", "[1, 2]"),
        ("init", numbers),
        ("explains", numbers),
        ("own_explain", "{}"),
        ("profiled", "{}"),
        ("micro", "3"),
        ("base_built_in", "[[1, 2]]"),
    ):
        yield register(f"register {model}", f"{model}.mar")
        yield predict(f"predict {model}", model, body, content_type=JSON)
        if model != "micro":  # there TorchServe does not answer
            yield predict(f"nonsense for {model}", model, '"x"', content_type=JSON)
            yield post(f"explain {model}", f"/explanations/{model}", body, content_type=JSON)
        yield get(f"describe {model}", "management", f"/models/{model}?customized=true")
        yield unregister(f"unregister {model}", model)
    yield register("register explains again", "explains.mar")
    target = '--XyZ\r\nContent-Disposition: form-data; name="target"\r\n\r\n1\r\n--XyZ--\r\n'
    yield post(
        "explain with a target", "/explanations/explains", f"{_JSON_FILE}{numbers}\r\n{target}",
        content_type="multipart/form-data; boundary=XyZ",
    )  # fmt: skip
    yield unregister("unregister explains again", "explains")
    yield register("register init_no_weights", "init_no_weights.mar")
    yield predict("shape of init_no_weights", "init_no_weights", '{"numbers": [1, 2, 3]}', content_type=JSON)
    yield unregister("unregister init_no_weights", "init_no_weights")
    yield register("register init_no_model", "init_no_model.mar")
    yield Settle("init_no_model", -1)
    yield register("register micro in batches", "micro.mar", batch_size=4, max_batch_delay=2000)
    yield Together(tuple(predict(f"micro {n}", "micro", '"7"', content_type=JSON) for n in range(1, 5)))
    yield unregister("unregister micro in batches", "micro")


def built_in() -> Iterator[Step]:
    """Reference 14.3 and 14.4: segmenter, detector, texts."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (256, 256), (255, 0, 0)).save(file, "PNG")
    red = file.getvalue()
    for model in ("segments", "detects", "detects_numbers"):
        yield register(f"register {model}", f"{model}.mar")
        yield predict(f"picture for {model}", model, red, content_type="image/png")
        yield predict(f"base64 for {model}", model, base64.b64encode(red), content_type=TEXT)
        yield unregister(f"unregister {model}", model)
    yield register("register reads", "reads.mar")
    yield predict("a text", "reads", "a good book", content_type=TEXT)
    yield unregister("unregister reads", "reads")


def stateful() -> Iterator[Step]:
    """Reference 8.9: sequences."""

    def step(name: str, number: int, sequence: str | None, **more: str) -> Call:
        asked = predict(name, "sequences", str(number), content_type=TEXT)
        given = {} if sequence is None else {"ts_request_sequence_id": sequence}
        headers = {**given, **{key: value for key, value in more.items() if value}}
        return replace(asked, headers=(*asked.headers, *headers.items()))

    yield register("register", "sequences.mar", initial_workers=None)
    yield Settle("sequences", 1)
    yield step("first of a", 1, "a", ts_request_sequence_start="true")
    yield step("second of a", 2, "a")
    yield step("first of b, without start", 5, "b")
    yield step("third of a", 3, "a")
    yield step("second of b", 5, "b")
    yield step("too many sequences", 1, "c")
    yield step("too many, without id", 1, None)
    yield unregister("unregister", "sequences")
    yield register("register again", "sequences.mar", initial_workers=None)
    yield Settle("sequences", 1)
    yield step("without id", 7, None)
    yield unregister("unregister again", "sequences")


def continuous() -> Iterator[Step]:
    """Reference 8.10 and 8.11: continuous batches and asynchronous handlers."""
    yield register("register", "continuous.mar", initial_workers=None)
    yield Settle("continuous", 1)
    for number in ("2", "5"):
        yield predict(f"{number} steps", "continuous", number, content_type=TEXT)
    yield Together(
        tuple(
            predict(f"together {number}", "continuous", str(number), content_type=TEXT)
            for number in (2, 3, 4)
        )
    )
    yield unregister("unregister", "continuous")
    yield register("register asynchronous", "asynchronous.mar", initial_workers=None)
    yield Settle("asynchronous", 1)
    for body in ("words", "parts", "status", "raise", "words again"):
        yield predict(f"asynchronous {body}", "asynchronous", body, content_type=TEXT)
    yield unregister("unregister asynchronous", "asynchronous")


def tickets() -> Iterator[Step]:
    """Reference 8.8: job tickets."""
    yield register("register", "tickets.mar", initial_workers=None)
    yield Settle("tickets", 1)
    yield predict("a ticket", "tickets", "x", content_type=TEXT)
    yield predict("another ticket", "tickets", "y", content_type=TEXT)
    yield unregister("unregister", "tickets")


def undecoded() -> Iterator[Step]:
    """Reference 7.2: ``decode_input_request=false``."""
    yield register("register", "tells.mar")
    for name, body, content_type in (
        ("json", '{"a": 1}', JSON),
        ("json broken", "{", JSON),
        ("text", "größe", TEXT),
        ("octets", b"\x00\xff", "application/octet-stream"),
        ("form", "data=one", "application/x-www-form-urlencoded"),
    ):
        yield predict(name, "tells", body, content_type=content_type)
    yield predict(
        "json file",
        "tells",
        f'{_JSON_FILE}{{"a": 1}}\r\n--XyZ--\r\n',
        content_type="multipart/form-data; boundary=XyZ",
    )
    yield unregister("unregister", "tells")


def measured() -> Iterator[Step]:
    """Reference 13.6 and 15.4: what handlers measure, by the API and by printing."""
    yield register("register", "measures.mar")
    for what in _MEASURED:
        yield predict(what, "measures", what, content_type=TEXT)
    yield predict("counter again", "measures", "counter", content_type=TEXT)
    yield Settle("measures", -1)
    for what, series in _MEASURED.items():
        yield get(f"{what}, shown", "metrics", f"/metrics?name[]={quote(series)}{_buckets(series)}")
    yield unregister("unregister", "measures")


_MEASURED: Final = {
    "counter": "Counter",
    "counter of one": "CounterOfOne",
    "counter below": "CounterBelow",
    "time": "Time",
    "seconds": "Seconds",
    "size": "Size",
    "percent": "Percent",
    "error": "Error",
    "metric": "Metric",
    "histogram": "Histogram",
    "declared": "Declared",
    "declared wrongly": "Declared",
    "wrong unit": "WrongUnit",
    "absent": "Absent",
    "printed": "Printed",
    "printed error": "PrintedError",
    "printed gauge": "PrintedGauge",
    "printed histogram": "PrintedHistogram",
    "printed info": "PrintedInfo",
    "printed old": "PrintedOld",
    "printed no dimensions": "PrintedBare",
    "printed within": "PrintedWithin",
    "printed no number": "PrintedWord",
    "printed negative": "PrintedNegative",
    "printed odd type": "PrintedOdd",
    "printed no host": "PrintedHostless",
    "printed small type": "PrintedSmall",
}
"""What the handler ``measures`` is told, and the metric that shows it."""


def _buckets(series: str) -> str:
    if "Histogram" not in series:
        return ""
    return "".join(f"&name[]={series}_{part}" for part in ("bucket", "sum", "count"))


def enveloped(envelope: str) -> Iterator[Step]:
    """Reference 14.6: a service envelope."""
    yield register("register", "flat.mar")
    encoded = base64.b64encode(b"bytes").decode()
    bodies: dict[str, tuple[tuple[str, str, str], ...]] = {
        "body": (
            ("text", "words", TEXT),
            ("json", '{"a": 1}', JSON),
            ("a form", "data=one&other=two", "application/x-www-form-urlencoded"),
            ("nothing", "", TEXT),
        ),
        "json": (
            ("instances", '{"instances": [1, "two", [3]]}', JSON),
            ("base64", json.dumps({"instances": [{"b64": encoded}]}), JSON),
            ("base64 columns", json.dumps({"instances": [{"x": {"b64": encoded}, "y": 1}]}), JSON),
            ("as octets", '{"instances": [1]}', "application/octet-stream"),
            ("no instances", '{"other": [1]}', JSON),
            ("none", '{"instances": []}', JSON),
        ),
        "kserve": (
            ("instances", '{"instances": [1]}', JSON),
            ("as octets", '{"instances": [1]}', "application/octet-stream"),
            ("three", '{"instances": [1, "two", [3]]}', JSON),
            ("no instances", '{"other": [1]}', JSON),
        ),
        "kservev2": (
            (
                "floats",
                json.dumps({"id": "7", "inputs": [_FLOATS]}),
                JSON,
            ),
            (
                "bytes",
                '{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["words"]}]}',
                JSON,
            ),
            ("no inputs", '{"other": []}', JSON),
        ),
    }
    model = "flat"
    if envelope == "kservev2":
        yield unregister("unregister flat", "flat")
        yield register("register tensors", "tensors.mar")
        model = "tensors"
    for name, body, content_type in bodies[envelope]:
        yield predict(name, model, body, content_type=content_type)
        if envelope != "body":
            route = f"/v1/models/{model}:predict" if envelope != "kservev2" else f"/v2/models/{model}/infer"
            yield post(f"{name} by protocol", route, body, content_type=content_type)
    if envelope == "kserve":
        yield post("explain", f"/v1/models/{model}:explain", '{"instances": [1]}', content_type=JSON)
    raising = {"body": '"raise"', "json": '{"instances": ["raise"]}', "kserve": '{"instances": ["raise"]}'}
    if envelope in raising:
        yield predict("raises", model, raising[envelope], content_type=JSON)
    yield unregister("unregister", model)
