"""Where modelserver answers otherwise than TorchServe 0.12.0, and why: the whole list.

A rule makes of TorchServe's answer the one that is expected of modelserver, to the byte. A rule that changes
no answer is stale, and a test says so.
"""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.differential.calls import Answer, Call
    from tests.differential.chapters import Chapter


@dataclass(frozen=True, slots=True)
class Rule:
    """One difference.

    ``why`` is a sentence for the migration guide; ``verdict`` says whether ours is better, other, or not
    there yet. ``change`` makes of their answer ours, wherever it applies; ``answers`` does so for single
    calls, named ``chapter/call``.
    """

    name: str
    verdict: str
    why: str
    change: Callable[[Call, Answer], Answer] | None = None
    answers: Mapping[str, Callable[[Answer], Answer]] = field(default_factory=dict)

    def expected(self, chapter: Chapter, call: Call, answer: Answer) -> Answer:
        """Their answer, changed if the rule is about it."""
        single = self.answers.get(f"{chapter.name}/{call.name}")
        if single is not None:
            return single(answer)
        return self.change(call, answer) if self.change is not None else answer


PHRASES = {
    **http.client.responses,
    413: "Request Entity Too Large",  # as they were before Python 3.13
    422: "Unprocessable Entity",
}
BETTER, OTHER, MISSING = "better", "other", "not yet"


# What single answers become


def error(status: int, kind: str, message: str) -> Callable[[Answer], Answer]:
    """An error of modelserver's."""
    body = pretty({"code": status, "type": kind, "message": message})
    headers = {"connection": "close", "content-type": "application/json"}
    return lambda answer: answer.but(status=status, reason=PHRASES[status], body=body, headers=headers)


def not_found(model: str) -> Callable[[Answer], Answer]:
    """What follows for calls to a model that modelserver refused to register."""
    return error(404, "ModelNotFoundException", f"Model not found: {model}")


def bad_request(message: str) -> Callable[[Answer], Answer]:
    """400."""
    return error(400, "BadRequestException", message)


def invalid(message: str) -> Callable[[Answer], Answer]:
    """400 for an archive."""
    return error(400, "InvalidModelException", message)


def success(body: bytes, content_type: str | None = "application/json") -> Callable[[Answer], Answer]:
    """200 where TorchServe fails."""
    headers = {"connection": "keep-alive", "content-type": content_type}
    return lambda answer: answer.but(status=200, reason="OK", body=body, headers=headers)


def told(status: str) -> Callable[[Answer], Answer]:
    """200 with a status text."""
    return success(pretty({"status": status}))


def registered(model: str, workers: int = 0) -> Callable[[Answer], Answer]:
    """A registration that succeeds."""
    text = f'Model "{model}" Version: 1.0 registered with {workers} initial workers'
    return told(text + ("" if workers else ". Use scale workers API to add workers for the model."))


def unregistered(model: str) -> Callable[[Answer], Answer]:
    """Its end."""
    return told(f'Model "{model}" unregistered')


def replaced(old: str, new: str) -> Callable[[Answer], Answer]:
    """A piece of the body."""
    return lambda answer: answer.but(body=(answer.body or b"").replace(old.encode(), new.encode()))


def header(name: str, value: str | None) -> Callable[[Answer], Answer]:
    """One header."""
    return lambda answer: answer.but(headers={name: value})


def pretty(value: object) -> bytes:
    """As both servers print JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


# What whole groups of answers become


def _sequence(name: str, *, starts: bool = False) -> Callable[[Answer], Answer]:
    """The headers of an answer of a sequence."""
    headers = {"ts_request_sequence_id": name, "ts_request_sequence_start": "true" if starts else None}
    return lambda answer: answer.but(headers=headers)


def _bad_v1(message: str) -> Callable[[Answer], Answer]:
    """400 on a route of KServe's, and for its clients."""
    body = pretty({"code": 400, "type": "BadRequestException", "message": message, "error": message})
    return lambda answer: bad_request(message)(answer).but(body=body)


_NO_INSTANCES = 'no instances in the request: the body needs "instances", a list of at least one instance'
_CUT_SHORT = "the request is not an inference request: Input data was truncated"
_NO_TENSORS = "the request is not an inference request: Object missing required field `inputs`"


def _strict_bodies() -> dict[str, Callable[[Answer], Answer]]:
    """What is no body of the protocol, by why."""
    unreadable = "can't Unmarshal body: Unrecognized request format: "
    malformed = "JSON is malformed: invalid character (byte 0)"
    messages = {
        "inputs/v1 predict": _NO_INSTANCES,
        "inputs/v1 explain": _NO_INSTANCES,
        "inputs/v2 infer": _NO_TENSORS,
        "inputs/v2 explain": _NO_TENSORS,
        "inputs/v1 no instances": "no instances in the request: the list is empty",
        "inputs/v1 broken": f"{unreadable}Input data was truncated",
        "inputs/v1 list": f"{unreadable}Expected `object`, got `array`",
        "failures/v1 value": f"{unreadable}{malformed}",
        "failures/v1 code": f"{unreadable}{malformed}",
        "failures/v2 value": f"the request is not an inference request: {malformed}",
        "versions/v1 predict": _NO_INSTANCES,
        "facts/environment by v1": f"{unreadable}{malformed}",
    }
    return {name: _bad_v1(message) for name, message in messages.items()}


def _compact(answer: Answer) -> Answer:
    body = json.dumps(json.loads(answer.body or b""), separators=(",", ":")).encode()
    return answer.but(body=body, headers={"content-type": "application/json"})


def _enveloped() -> dict[str, Callable[[Answer], Answer]]:
    """Bodies that an envelope does not understand, and those that only TorchServe's does not."""
    none = 'no instances in the request: the body needs "instances", a list'
    inputs = 'no inputs in the request: the body needs "inputs", a list'
    found = {f"envelope_{name}/no instances": bad_request(none) for name in ("json", "kserve")}
    by_protocol = _bad_v1(f"{none} of at least one instance")
    found |= {f"envelope_{name}/no instances by protocol": by_protocol for name in ("json", "kserve")}
    return found | {
        "envelope_json/as octets": success(b'{"predictions": [["int", 1]]}', None),
        "envelope_json/as octets by protocol": success(_predictions(["int", 1])),
        "envelope_json/none": success(b'{"predictions": []}', None),
        "envelope_json/none by protocol": _bad_v1("no instances in the request: the list is empty"),
        "envelope_kservev2/no inputs": bad_request(inputs),
        "envelope_kservev2/no inputs by protocol": _bad_v1(inputs),
    }


def _loaded() -> dict[str, Callable[[Answer], Answer]]:
    """Handlers that TorchServe does not load."""
    answers = {"two_classes": b"helped", "no_initialize": b"went without", "class_named": b"answered, True"}
    found: dict[str, Callable[[Answer], Answer]] = {}
    for model, body in answers.items():
        found[f"styles/register {model}"] = registered(model, 1)
        found[f"styles/predict {model}"] = success(body, None)
        found[f"styles/unregister {model}"] = unregistered(model)
    return found


def _plain_labels(call: Call, answer: Answer) -> Answer:
    if call.port != "metrics" or answer.body is None:
        return answer
    return answer.but(body=answer.body.replace(b",} ", b"} "))


def _standard_phrase(_call: Call, answer: Answer) -> Answer:
    made_up = re.fullmatch(r"(Client|Server) Error \(\d+\)", answer.reason)
    if answer.reason and not made_up:
        return answer
    return answer.but(reason=PHRASES.get(answer.status, ""))


def _json_type(call: Call, answer: Answer) -> Answer:
    if "content-type" in answer.headers or call.port != "inference" or not _was_encoded(call, answer):
        return answer
    return answer.but(headers={"content-type": "application/json"})


def _was_encoded(call: Call, answer: Answer) -> bool:
    """Whether the handler returned a value that the server made JSON of."""
    if call.method == "HEAD":
        return call.path == "/predictions/tells"
    if re.match(rb'\{\n  "label \d": |\[\n  \[\n    \[\n', answer.body or b""):
        return True  # its numbers are masked
    try:
        value = json.loads(answer.body or b"")
    except ValueError:
        return False
    return json.dumps(value, indent=2).encode() == answer.body


def _kserve_error(call: Call, answer: Answer) -> Answer:
    no_route = b", please refer to API document." in (answer.body or b"")
    if answer.status < 400 or not (no_route or call.path.startswith(("/v1/", "/v2/"))):
        return answer
    body = json.loads(answer.body or b"")
    message = body["message"]
    if message.startswith("Model not found: "):
        message = f"Model with name {message.removeprefix('Model not found: ')} does not exist."
    status = 500 if (answer.status, body["message"]) == (503, "Prediction failed") else answer.status
    return answer.but(
        status=status,
        reason=PHRASES[status],
        body=pretty({**body, "code": status, "error": message}),
    )


def _cause_of_failure(_call: Call, answer: Answer) -> Answer:
    body = re.sub(rb'("Failed to start workers for model [^"]*)"', rb'\1. <cause>"', answer.body or b"")
    return answer.but(body=body)


def _own_document(_call: Call, answer: Answer) -> Answer:
    return answer.but(body=None) if (answer.body or b"").startswith(b'{\n  "openapi"') else answer


def _own_metrics(call: Call, answer: Answer) -> Answer:
    return answer.but(body=None) if call.port == "metrics" and call.path == "/metrics" else answer


def _stream_flag(_call: Call, answer: Answer) -> Answer:
    return answer.but(headers={"ts_stream_next": None})


def _large_body(_call: Call, answer: Answer) -> Answer:
    if answer.status != 413 or "x-request-id" in answer.headers:
        return answer
    changed = error(
        413,
        "RequestEntityTooLargeException",
        "The request body is larger than max_request_size=100000 bytes.",
    )(answer)
    return changed.but(
        headers={
            "cache-control": "no-cache; no-store, must-revalidate, private",
            "expires": "Thu, 01 Jan 1970 00:00:00 UTC",
            "pragma": "no-cache",
            "x-request-id": "<uuid>",
        }
    )


_RED = {"label 0": 0.46226, "label 1": 0.25453, "label 2": 0.14014, "label 3": 0.07716, "label 4": 0.04248}
_GREY = pretty(
    {"label 0": 0.40246, "label 1": 0.24973, "label 2": 0.15496, "label 3": 0.09615, "label 4": 0.05966}
)[:-1]
_UTF_16 = (
    '"bytearray",\n      "\\u00ff\\u00fe{\\u0000\\"\\u0000a\\u0000\\"\\u0000:\\u0000 \\u00001\\u0000}\\u0000"'
)


def _predictions(*values: object) -> bytes:
    return json.dumps({"predictions": values}, separators=(",", ":")).encode()


def _instance(key: str, kind: str, value: object) -> dict[str, Any]:
    """What the handler ``tells`` says of one instance."""
    headers = {"explain": "False", "url_path": "", "describe": None, "X-Asked": None}
    headers |= {"Content-Type": "application/json", "body": None, "data": None, "other": None}
    return {"row": "dict", "keys": [key], "values": {key: [kind, value]}, "headers": headers, "rows": 1}


def _edited(answer: Answer, edit: Callable[[dict[str, Any]], None]) -> Answer:
    """An answer of the handler ``tells`` with its values edited."""
    value = json.loads(answer.body or b"")
    edit(value)
    return answer.but(body=json.dumps(value, indent=2).encode())


def _form_blank(answer: Answer) -> Answer:
    def edit(value: dict[str, Any]) -> None:
        value["keys"].append("other")
        value["values"]["other"] = ["bytearray", ""]
        value["headers"]["other"] = {"content-type": ""}

    return _edited(answer, edit)


def _not_allowed(answer: Answer) -> Answer:
    message = "Requested method is not allowed, please refer to API document."
    changed = error(405, "MethodNotAllowedException", message)(answer)
    body = json.loads(changed.body or b"")
    return changed.but(body=pretty({**body, "error": message}))


def _checked_archives() -> dict[str, Callable[[Answer], Answer]]:
    parse = "Failed to parse signature.json. MAR-INF/MANIFEST.json: "
    no_archive = "it is neither a zip file (.mar) nor a gzipped tar file (.tar.gz)."
    runtime = "Runtime is not defined or invalid. Archive: {!r}."
    nameless = (
        "Model name is not defined. Archive {!r}: MAR-INF/MANIFEST.json {}, "
        "and the registration gives no model_name."
    )
    refusals = {
        "manifests/register m_bad_runtime": runtime.format("m_bad_runtime.mar"),
        "manifests/register m_null_runtime": runtime.format("m_null_runtime.mar"),
        "manifests/register m_no_handler": (
            "The archive m_no_handler.mar names no handler, and neither does the registration."
        ),
        "manifests/register m_no_name": nameless.format("m_no_name.mar", "has no modelName"),
        "manifests/register m_no_manifest": nameless.format("m_no_manifest.mar", "is missing"),
        "manifests/register m_absent_config": (
            "Invalid archive 'm_absent_config.mar': configFile 'absent.yaml' of "
            "MAR-INF/MANIFEST.json is missing."
        ),
        "broken/register b_truncated.mar": (
            f"{parse}line 1, column 25: Unterminated string starting at. Archive: 'b_truncated.mar'."
        ),
        "broken/register b_list.mar": f"{parse}it must be a JSON object. Archive: 'b_list.mar'.",
        "broken/register b_empty_manifest.mar": (
            f"{parse}line 1, column 1: Expecting value. Archive: 'b_empty_manifest.mar'."
        ),
        "broken/register b_model_text.mar": f"{parse}model must be an object. Archive: 'b_model_text.mar'.",
        "broken/register b_slip.mar": (
            "Invalid archive 'b_slip.mar', entry '../b_slip_was_here.txt': '..' is not allowed."
        ),
        "broken/register b_slip.tar.gz": (
            "Invalid archive 'b_slip.tar.gz', entry 'b/../../b_slip_was_here.txt': '..' is not allowed."
        ),
        "broken/register b_text.mar": f"Invalid archive 'b_text.mar': {no_archive}",
        "broken/register b_empty.mar": f"Invalid archive 'b_empty.mar': {no_archive}",
        "broken/register b_text.tar.gz": f"Invalid archive 'b_text.tar.gz': {no_archive}",
        "broken/register b_cut.mar": (
            "Invalid archive 'b_cut.mar': it cannot be read (File is not a zip file)."
        ),
        "broken/register b_yaml": "b_yaml.mar: model-config.yaml: <reason>",
        "broken/register b_yaml_tag": "b_yaml_tag.mar: model-config.yaml: <reason>",
    }
    gone = (
        *("manifests/unregister m_no_handler", "manifests/unregister m_absent_config"),
        *("broken/unregister b_yaml", "broken/unregister b_yaml_tag"),
    )
    return {
        **{name: invalid(message) for name, message in refusals.items()},
        **{name: not_found(name.rpartition(" ")[2]) for name in gone},
        "broken/nothing is left": success(pretty({"models": []})),
        "broken/handler of the registration": registered("plain"),
    }


_USUAL = """\
[
  {
    "modelName": "%s",
    "modelVersion": "1.0",
    "modelUrl": "%s.mar",
    "runtime": "python",
    "minWorkers": 0,
    "maxWorkers": 0,
    "batchSize": %d,
    "maxBatchDelay": %d,
    "responseTimeout": %d,
    "startupTimeout": %d,
    "maxRetryTimeoutInSec": 300,
    "clientTimeoutInMills": 0,
    "parallelType": "",
    "parallelLevel": 0,
    "deviceType": "<device>",
    "continuousBatching": false,
    "useJobTicket": false,
    "useVenv": false,
    "stateful": false,
    "sequenceMaxIdleMSec": 0,
    "sequenceTimeoutMSec": 0,
    "maxNumSequence": 0,
    "maxSequenceJobQueueSize": 0,
    "loadedAtStartup": false,
    "workers": [],
    "jobQueueStatus": {
      "remainingCapacity": 100,
      "pendingRequests": 0
    }
  }
]
"""


def _empty_configurations() -> dict[str, Callable[[Answer], Answer]]:
    found = {}
    for name, model, numbers in (
        ("configurations/{} nothing", "c_nothing", (1, 100, 120, 120)),
        ("configurations/{} remark", "c_remark", (1, 100, 120, 120)),
        ("configurations/{} silent and parameters", "c_nothing", (9, 90, 33, 44)),
        ("table/{} c_nothing", "c_nothing", (6, 60, 66, 67)),
        ("table/{} c_nothing and parameters", "c_nothing", (9, 90, 33, 44)),
    ):
        found[name.format("register")] = registered(model)
        found[name.format("describe")] = success((_USUAL % (model, model, *numbers)).encode())
        found[name.format("unregister")] = unregistered(model)
    return found


def _timeouts(before: tuple[int, int], after: tuple[int, int]) -> Callable[[Answer], Answer]:
    """Of a description."""
    text = '"responseTimeout": %d,\n    "startupTimeout": %d,'
    return replaced(text % before, text % after)


RULES: tuple[Rule, ...] = (
    Rule(
        "phrase",
        OTHER,
        "The status line of a prediction has its standard phrase (`200 OK`), which TorchServe leaves "
        "out or makes up.",
        _standard_phrase,
    ),
    Rule(
        "content-type",
        BETTER,
        "What the server itself converts to JSON is sent as `application/json`; TorchServe sends no "
        "content type.",
        _json_type,
    ),
    Rule(
        "v1-error",
        OTHER,
        "Errors on V1 and V2 routes, and for unknown paths and methods, have `error` besides TorchServe's "
        "fields, for KServe's clients, and a "
        "handler's exception is 500 there, as in KServe.",
        _kserve_error,
    ),
    Rule(
        "cause",
        BETTER,
        "When workers fail to start, TorchServe's message is followed by the cause and the last "
        "lines of output.",
        _cause_of_failure,
    ),
    Rule("openapi", OTHER, "The OpenAPI documents are modelserver's own.", _own_document),
    Rule(
        "metrics",
        OTHER,
        "`/metrics` is filled by default: `metrics_mode` is `prometheus`.",
        _own_metrics,
    ),
    Rule(
        "labels",
        OTHER,
        "The labels of a sample in `/metrics` have no comma behind the last one (they have under the compat "
        "defaults).",
        _plain_labels,
    ),
    Rule(
        "loader",
        BETTER,
        "A class may be named (`file:Class`), lack `initialize`, and share its file with helper classes; "
        "TorchServe's worker does not start then.",
        answers=_loaded(),
    ),
    Rule(
        "envelopes",
        BETTER,
        "With an envelope, a body without instances or inputs is a 400 with the reason; `json` takes bodies "
        "without a content type, and an empty list.",
        answers=_enveloped(),
    ),
    Rule(
        "compact",
        OTHER,
        "On V1 routes `predictions` and `explanations` are JSON without white space, of type "
        "`application/json`, under every envelope.",
        answers=dict.fromkeys(
            (
                *(f"envelope_json/{name} by protocol" for name in ("instances", "base64", "base64 columns")),
                *(f"envelope_kserve/{name} by protocol" for name in ("instances", "as octets", "three")),
                "envelope_kserve/explain",
            ),
            _compact,
        ),
    ),
    Rule(
        "explanations",
        BETTER,
        "A handler that cannot explain says so (501); the class to explain is a number, also from a form.",
        answers={
            **dict.fromkeys(
                (f"networks/explain {model}" for model in ("post", "init", "profiled", "base_built_in")),
                error(
                    501,
                    "InternalServerException",
                    "The handler has no get_insights method, so it explains nothing",
                ),
            ),
            "networks/explain with a target": replaced('"target": "1"', '"target": 1'),
        },
    ),
    Rule(
        "json-numbers",
        BETTER,
        "`base_handler` takes numbers in JSON, and says what is wrong with anything else (400).",
        answers={
            "networks/predict base_built_in": success(pretty([[5.5, 10.5]])[:-1]),
            "networks/nonsense for base_built_in": bad_request(
                "the input is not JSON: numbers or lists of numbers are needed"
            ),
        },
    ),
    Rule(
        "vocabulary",
        BETTER,
        "A text handler's vocabulary may be a mapping of words to numbers; TorchServe needs torchtext's.",
        answers={"builtin/a text": success(pretty({"zero": 0.63535, "one": 0.36464})[:-1])},
    ),
    Rule(
        "error-metric",
        BETTER,
        "The series of `add_error` has its model's name too.",
        answers={
            "measured/error, shown": replaced(
                'Error{Level="Error"', 'Error{ModelName="measures",Level="Error"'
            )
        },
    ),
    Rule(
        "header-case",
        BETTER,
        "A handler finds a request header by its name in upper or lower case, as in HTTP.",
        answers={"facts/header in lower case": success(b"yes", None)},
    ),
    Rule(
        "sequence-headers",
        BETTER,
        "The answers of a sequence name it, and say when it began: a client learns the id that it was given.",
        answers={
            "stateful/first of a": _sequence("a", starts=True),
            "stateful/second of a": _sequence("a"),
            "stateful/third of a": _sequence("a"),
            "stateful/first of b, without start": _sequence("b", starts=True),
            "stateful/second of b": _sequence("b"),
            "stateful/without id": _sequence("ts-seq-<uuid>", starts=True),
        },
    ),
    Rule(
        "too-large",
        BETTER,
        "413 has a JSON body and a request id; TorchServe closes without either.",
        _large_body,
    ),
    Rule(
        "stream-flag",
        OTHER,
        "The header `ts_stream_next`, a flag between TorchServe's own processes, is not sent to clients.",
        _stream_flag,
    ),
    Rule(
        "generators",
        BETTER,
        "A generator that a handler returns for a request is streamed, part by part.",
        answers={
            "outputs/generator": lambda answer: success(b"01")(answer).but(
                headers={"transfer-encoding": "chunked"}
            )
        },
    ),
    Rule(
        "error-200",
        OTHER,
        "A `PredictionException` with the code 200 is answered like any other code, not with "
        "the word `error`.",
        answers={
            "failures/code 200": lambda answer: answer.but(
                body=pretty({"code": 200, "type": "InternalServerException", "message": "told code 200"}),
                headers={"content-type": "application/json"},
            )
        },
    ),
    Rule(
        "isolation",
        BETTER,
        "A failing request fails alone: the others in its batch are answered.",
        answers={f"batches/one raises {place}": success(b"served", None) for place in (1, 3)},
    ),
    Rule(
        "pictures",
        BETTER,
        "A picture that cannot be read is the client's fault: 400 with the reason, for its own request only. "
        "Grey pictures are converted.",
        answers={
            "pictures/no picture": bad_request("the 10 bytes are not a picture in a format that can be read"),
            "pictures/nothing": bad_request(
                "no picture: 'data', 'body' and 'b64' are missing or empty (fields sent: 'body')"
            ),
            "pictures/cut off": bad_request("the picture is damaged: image file is truncated"),
            "pictures/grey": success(_GREY),
        },
    ),
    Rule(
        "json",
        BETTER,
        "A JSON body in UTF-16 or with a byte order mark is parsed too.",
        answers={
            "inputs/json with bom": replaced(
                '"bytearray",\n      "\\u00ef\\u00bb\\u00bf{}"', '"dict",\n      {}'
            ),
            "inputs/json utf-16": replaced(_UTF_16, '"dict",\n      {\n        "a": 1\n      }'),
        },
    ),
    Rule(
        "describe-header",
        BETTER,
        "A client cannot set the header `describe`, with which the server asks a handler to describe itself.",
        answers={"inputs/headers that are the server's": replaced('"describe": "True"', '"describe": null')},
    ),
    Rule(
        "form-fields",
        BETTER,
        "A field of an urlencoded body without `=` is kept with an empty value; the whole of a JSON "
        "text sent with "
        "`curl -d` is its key.",
        answers={
            "inputs/form blank": _form_blank,
            "inputs/form of curl -d": replaced(
                '"keys": [],\n  "values": {},',
                '"keys": [\n    "{\\"a\\": 1}"\n  ],\n'
                '  "values": {\n    "{\\"a\\": 1}": [\n      "bytearray",\n      ""\n'
                "    ]\n  },",
            ),
        },
    ),
    Rule(
        "explain-header",
        OTHER,
        "The request headers `explain` and `url_path` are there for handlers on every route, not on "
        "some only.",
        answers={
            f"inputs/{name}": replaced(
                '"explain": null,\n    "url_path": null', '"explain": "False",\n    "url_path": ""'
            )
            for name in ("invocations", "invoke", "legacy", "legacy with version", "invocations by form")
        },
    ),
    Rule(
        "v1-instances",
        BETTER,
        "A V1 body with a list of `instances` is split for every handler: each is a row of a batch, "
        'and the answer is `{"predictions": …}` (`split_instances=false` passes bodies through).',
        answers={
            "inputs/v1 instances": success(
                _predictions(_instance("body", "int", 1), _instance("a", "int", 2))
            ),
            "inputs/v1 one instance": success(_predictions(_instance("body", "str", "x"))),
            "pictures/v1 base64": success(_predictions(_RED, _RED)),
        },
    ),
    Rule(
        "v2",
        BETTER,
        "V2 routes are those of the Open Inference Protocol: bodies of tensors are split into rows, a "
        "version may be named.",
        answers={"routes/inference POST /v2/models/plain/versions/1.0/infer": _bad_v1(_CUT_SHORT)},
    ),
    Rule(
        "strict-bodies",
        OTHER,
        "On V1 and V2 routes a body that does not follow the protocol is 400 for every model; "
        "`split_instances=false`, and `compat_defaults=torchserve`, pass it to the handler as TorchServe "
        "does.",
        answers=_strict_bodies(),
    ),
    Rule(
        "urls",
        OTHER,
        "`file://` is only for URLs in the operator's `allowed_urls` (404 otherwise); a download "
        "whose name is taken "
        "is a conflict (409, not 500).",
        answers={
            "registration/file url absent": error(
                404,
                "ModelNotFoundException",
                "Given URL file:///nowhere/plain.mar does not match any allowed URL(s): "
                "file:// needs an allowed_urls in the configuration",
            ),
            "registration/refused host": error(
                409, "ConflictStatusException", "Model file already exists plain.mar"
            ),
        },
    ),
    Rule(
        "numbers",
        BETTER,
        "Numbers that make no sense are refused or replaced by the nearest valid one; `max_batch_delay` "
        "missing from a JSON "
        "body is the default.",
        answers={
            "registration/describe values: zero": replaced('"batchSize": 0', '"batchSize": 1'),
            "registration/values: negative": bad_request(
                "batch_size=-5: a whole number of at least 1 is needed"
            ),
            "registration/describe values: negative": not_found("plain"),
            "registration/unregister values: negative": not_found("plain"),
            "registration/describe body: json without delay": replaced(
                '"maxBatchDelay": -10000', '"maxBatchDelay": 100'
            ),
            "scaling/scale min negative": bad_request(
                "min_worker=-1: a whole number of at least 0 is needed"
            ),
        },
    ),
    Rule(
        "json-registration",
        BETTER,
        "A JSON body of a registration that cannot be read is 400 with the reason, not 500.",
        answers={
            "registration/body: json broken": bad_request(
                "The body is not valid JSON: Expecting value: line 1 column 9 (char 8)"
            ),
            "registration/body: json empty": bad_request(
                "The body is not valid JSON: Expecting value: line 1 column 1 (char 0)"
            ),
            "registration/body: json list": bad_request("The body must be a JSON object of parameters."),
        },
    ),
    Rule(
        "archives",
        BETTER,
        "Archives are told apart by content, not by suffix: a `.zip` and a tar without a top folder "
        "load too.",
        answers={
            "layouts/register a zip": registered("plain"),
            "layouts/unregister a zip": unregistered("plain"),
            "layouts/register a flat tar": registered("flat"),
            "layouts/unregister a flat tar": unregistered("flat"),
        },
    ),
    Rule(
        "null-fields",
        BETTER,
        "A manifest field that is `null` counts as not there; TorchServe's workers fail on it.",
        answers={
            "manifests/register m_null_fields": registered("m_null_fields", 1),
            "manifests/predict m_null_fields": success(b"fine", None),
            "manifests/unregister m_null_fields": unregistered("m_null_fields"),
        },
    ),
    Rule(
        "checked-archives",
        BETTER,
        "What keeps an archive from ever being served is said when it is registered, with the reason "
        "and the archive's "
        "name: no handler, a missing or broken `model-config.yaml`, a manifest that cannot be read, "
        "no archive at all.",
        answers=_checked_archives(),
    ),
    Rule(
        "empty-configuration",
        BETTER,
        "A `model-config.yaml` without content counts as none; TorchServe answers 500.",
        answers=_empty_configurations(),
    ),
    Rule(
        "timeouts",
        BETTER,
        "A timeout of the registration counts before all others, and one of `models=` where the archive's "
        "`model-config.yaml` sets none; with TorchServe the registration's is the last to count, and a "
        "`model-config.yaml` that sets none hides both.",
        answers={
            **{
                f"configurations/describe {name} and parameters": _timeouts((120, 120), (33, 44))
                for name in ("batch", "batch_words", "workers")
            },
            "configurations/describe times and parameters": _timeouts((11, 22), (33, 44)),
            "table/describe c_batch": _timeouts((120, 120), (66, 67)),
            "table/describe c_batch and parameters": _timeouts((120, 120), (33, 44)),
            "table/describe c_times and parameters": _timeouts((11, 22), (33, 44)),
            "table/describe plain and parameters": _timeouts((66, 67), (33, 44)),
        },
    ),
    Rule(
        "parallel-type",
        OTHER,
        "A `parallelType` without a `parallelLevel` is described as it is written; it has no effect on "
        "either server.",
        answers={"configurations/describe parallel_type": replaced('Type": "",', 'Type": "pp",')},
    ),
    Rule(
        "workflows",
        OTHER,
        "Registering workflows is disabled, as at TorchServe's archived head (its 0.12.0 wheel still "
        "accepts them).",
        answers=dict.fromkeys(
            ("routes/management POST /workflows", "routes/workflows with parameters"),
            bad_request("Registering new workflows is disabled."),
        ),
    ),
    Rule(
        "set-default",
        BETTER,
        "`GET` and `DELETE` of `…/set-default` are 405; TorchServe describes the model, or "
        "**unregisters** it.",
        answers={
            **dict.fromkeys(
                ("routes/management GET /models/plain/1.0/set-default", "routes/delete set-default"),
                _not_allowed,
            ),
            "routes/unregister": unregistered("plain"),
        },
    ),
    Rule(
        "v1-alive",
        BETTER,
        "`GET /` of the inference address says `alive`, as clients of KServe's V1 protocol ask; TorchServe "
        "refuses it with 405, as modelserver does with `compat_defaults=torchserve`.",
        answers={"routes/inference GET /": success(b'{"status":"alive"}')},
    ),
    Rule(
        "v1-methods",
        OTHER,
        "A V1 action that does not exist is 405 where the model's readiness may be asked, not 404.",
        answers={"routes/inference POST /v1/models/plain:other": _not_allowed},
    ),
)


def expected_of(chapter: Chapter, call: Call, theirs: Answer) -> tuple[Answer, list[Rule]]:
    """What modelserver is expected to answer, and the rules that make it differ."""
    answer, used = theirs, []
    for rule in RULES:
        changed = rule.expected(chapter, call, answer)
        if changed != answer:
            answer = changed
            used.append(rule)
    return answer, used


def all_singles() -> dict[str, Any]:
    """The rules of single calls by their names."""
    return {name: change for rule in RULES for name, change in rule.answers.items()}
