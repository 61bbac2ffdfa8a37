"""What each rule of :mod:`modelserver.migrating.rules` takes over from our answer into TorchServe's.

All get the request, their answer and ours, both masked, and return theirs with what they explain as it is in
ours; theirs as it is where they explain nothing.
"""

from __future__ import annotations

import http.client
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

from modelserver.migrating.comparison import unmasked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from modelserver.migrating.calls import Answer, Call

    Change = Callable[[Call, Answer, Answer], Answer]

PHRASES = {
    **http.client.responses,
    413: "Request Entity Too Large",  # as they were before Python 3.13
    422: "Unprocessable Entity",
}
_FAILED = "Prediction failed"
_TOLERANCE = 1e-3  # of floating point numbers, relative


def pretty(value: object) -> bytes:
    """As both servers print JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


# What answers say


def _taken_over(explained: Callable[[Call, Answer, Answer], bool]) -> Change:
    """Ours as a whole, if it is explained."""
    return lambda call, theirs, ours: ours if explained(call, theirs, ours) else theirs


@lru_cache(maxsize=8)
def _json(body: bytes | None) -> Any:
    """None for what is no JSON."""
    try:
        return unmasked(body or b"")
    except (ValueError, RecursionError):
        return None


def _message(answer: Answer) -> str:
    """Of an error."""
    said = _json(answer.body) if answer.status >= 400 else None
    return str(said.get("message", "")) if isinstance(said, dict) else ""


def _failed(answer: Answer) -> bool:
    return answer.status in (500, 503) and _message(answer).startswith(_FAILED)


def _good(answer: Answer) -> bool:
    return 200 <= answer.status < 300


def _registers(call: Call) -> bool:
    return call.method == "POST" and call.path.partition("?")[0] == "/models"


def _header(call: Call, name: str) -> str:
    return next((value for key, value in call.headers if key.lower() == name), "")


def _by_protocol(call: Call) -> bool:
    return call.path.startswith(("/v1/", "/v2/"))


def _only_at(theirs: Answer, ours: Answer, keys: Collection[str]) -> bool:
    """Whether the bodies are JSON that differs at these keys only."""
    a, b = _json(theirs.body), _json(ours.body)
    return a is not None and a != b and _without(a, keys) == _without(b, keys)


def _without(value: Any, keys: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, keys) for name, inner in value.items() if name not in keys}
    return [_without(inner, keys) for inner in value] if isinstance(value, list) else value


def _body_at(*keys: str) -> Change:
    """Our body, where it differs at these keys only."""
    return lambda _call, theirs, ours: theirs.but(body=ours.body) if _only_at(theirs, ours, keys) else theirs


def _described_at(*keys: str) -> Change:
    """The same for descriptions only."""
    change = _body_at(*keys)
    return lambda call, theirs, ours: change(call, theirs, ours) if call.port == "management" else theirs


# What the rules explain


def _standard_phrase(_call: Call, theirs: Answer, _ours: Answer) -> Answer:
    made_up = re.fullmatch(r"(Client|Server) Error \(\d+\)", theirs.reason)
    if not theirs.status or (theirs.reason and not made_up):
        return theirs
    return theirs.but(reason=PHRASES.get(theirs.status, ""))


def _json_type(call: Call, theirs: Answer, ours: Answer) -> Answer:
    kind = ours.headers.get("content-type")
    if "content-type" in theirs.headers or call.port != "inference" or kind != "application/json":
        return theirs
    return theirs.but(headers={"content-type": kind})


def _kserve_error(call: Call, theirs: Answer, _ours: Answer) -> Answer:
    no_route = b", please refer to API document." in (theirs.body or b"")
    message = _message(theirs)
    if not message or not (no_route or _by_protocol(call)):
        return theirs
    body = json.loads(theirs.body or b"")
    status = 500 if (theirs.status, message) == (503, _FAILED) else theirs.status
    if message.startswith("Model not found: "):
        message = f"Model with name {message.removeprefix('Model not found: ')} does not exist."
    return theirs.but(
        status=status,
        reason=PHRASES.get(status, theirs.reason),
        body=pretty({**body, "code": status, "error": message}),
    )


def _cause_of_failure(_call: Call, theirs: Answer, _ours: Answer) -> Answer:
    body = re.sub(rb'("Failed to start workers for model [^"]*)"', rb'\1. <cause>"', theirs.body or b"")
    return theirs.but(body=body)


def _own_document(_call: Call, theirs: Answer, ours: Answer) -> Answer:
    documents = all((answer.body or b"").startswith(b'{\n  "openapi"') for answer in (theirs, ours))
    return theirs.but(body=None) if documents else theirs


def _own_metrics(call: Call, theirs: Answer, ours: Answer) -> Answer:
    shown = call.port == "metrics" and call.path == "/metrics" and ours.status == 200
    return theirs.but(body=None) if shown else theirs


def _plain_labels(call: Call, theirs: Answer, _ours: Answer) -> Answer:
    if call.port != "metrics" or theirs.body is None:
        return theirs
    return theirs.but(body=theirs.body.replace(b",} ", b"} "))


@_taken_over
def _loader(call: Call, theirs: Answer, ours: Answer) -> bool:
    return _registers(call) and _good(ours) and _message(theirs).startswith("Failed to start workers")


@_taken_over
def _envelopes(call: Call, theirs: Answer, ours: Answer) -> bool:
    said = _message(ours)
    asks = ("no instances in the request: ", "no inputs in the request: ")
    if theirs.status != 503:
        return False
    asked = _json(call.body)
    answered = _json(ours.body)
    instances = isinstance(asked, dict) and "instances" in asked
    takes = instances and isinstance(answered, dict) and "predictions" in answered
    return (ours.status == 400 and said.startswith(asks)) or (_good(ours) and takes)


def _compact(call: Call, theirs: Answer, ours: Answer) -> Answer:
    value = _json(theirs.body)
    if not call.path.startswith("/v1/models/") or not isinstance(value, dict) or value != _json(ours.body):
        return theirs
    return theirs.but(body=ours.body, headers={"content-type": ours.headers.get("content-type")})


def _explanations(call: Call, theirs: Answer, ours: Answer) -> Answer:
    if not re.search(r"/explanations/|[:/]explain$", call.path):
        return theirs
    if ours.status == 501 and _failed(theirs):
        return ours
    return theirs.but(body=re.sub(rb'"target": "(\d+)"', rb'"target": \1', theirs.body or b""))


@_taken_over
def _json_numbers(call: Call, theirs: Answer, ours: Answer) -> bool:
    if not _failed(theirs):
        return False
    if ours.status == 400 and _message(ours).startswith("the input is not JSON: numbers"):
        return True
    return _good(ours) and isinstance(_json(call.body), list) and isinstance(_json(ours.body), list)


@_taken_over
def _vocabulary(call: Call, theirs: Answer, ours: Answer) -> bool:
    scores = _json(ours.body)
    text = _header(call, "content-type").startswith("text/")
    named = isinstance(scores, dict) and all(isinstance(score, float) for score in scores.values())
    return text and _failed(theirs) and _good(ours) and named


def _error_metric(call: Call, theirs: Answer, ours: Answer) -> Answer:
    without = re.sub(rb'(?m)^(Error\{)ModelName="[^"]*",', rb"\1", ours.body or b"")
    same = without == re.sub(rb",\} ", b"} ", theirs.body or b"")
    return theirs.but(body=ours.body) if call.port == "metrics" and same else theirs


def _header_case(call: Call, theirs: Answer, ours: Answer) -> Answer:
    # A shorter value may be anywhere in a body.
    given = [value.encode() for name, value in call.headers if name == name.lower() and len(value) > 2]
    seen = any(value in (ours.body or b"") and value not in (theirs.body or b"") for value in given)
    return theirs.but(body=ours.body) if seen and theirs.status == ours.status else theirs


def _sequence_headers(_call: Call, theirs: Answer, ours: Answer) -> Answer:
    names = {"ts_request_sequence_id", "ts_request_sequence_start"} & ours.headers.keys()
    return theirs.but(headers={name: ours.headers[name] for name in names})


@_taken_over
def _too_large(_call: Call, theirs: Answer, ours: Answer) -> bool:
    return theirs.status == ours.status == 413 and "x-request-id" not in theirs.headers


def _stream_flag(_call: Call, theirs: Answer, _ours: Answer) -> Answer:
    return theirs.but(headers={"ts_stream_next": None})


@_taken_over
def _generators(_call: Call, theirs: Answer, ours: Answer) -> bool:
    return _message(theirs) == "Unsupported model output data type." and _good(ours)


@_taken_over
def _error_200(_call: Call, theirs: Answer, ours: Answer) -> bool:
    said = _json(ours.body)
    coded = isinstance(said, dict) and said.get("code") == 200
    return theirs.status == ours.status == 200 and theirs.body == b"error" and coded


@_taken_over
def _isolation(_call: Call, theirs: Answer, ours: Answer) -> bool:
    # A request that was computed alone did not fail because of others.
    return _failed(theirs) and _good(ours) and int(ours.headers.get("x-batch-size", "1")) > 1


@_taken_over
def _pictures(call: Call, theirs: Answer, ours: Answer) -> bool:
    if not _failed(theirs):
        return False
    reasons = r"the \d+ bytes are not a picture|no picture: |the picture is damaged"
    if ours.status == 400 and re.match(reasons, _message(ours)):
        return True
    return _good(ours) and _not_rgb(call.body)


def _not_rgb(body: bytes) -> bool:
    """Whether it has a picture of other channels than red, green and blue."""
    start = body.find(b"\x89PNG\r\n\x1a\n")
    if start >= 0:
        return body[start + 25 : start + 26] != b"\x02"
    frame = re.search(rb"\xff[\xc0-\xc2]..\x08....(.)", body, re.DOTALL)
    return frame is not None and frame[1] != b"\x03"


def _json_texts(call: Call, theirs: Answer, ours: Answer) -> Answer:
    odd = call.body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    applies = odd and "json" in _header(call, "content-type").lower() and _good(theirs) and _good(ours)
    return theirs.but(body=ours.body) if applies else theirs


def _describe_header(call: Call, theirs: Answer, ours: Answer) -> Answer:
    return _body_at("describe")(call, theirs, ours) if _header(call, "describe") else theirs


def _form_fields(call: Call, theirs: Answer, ours: Answer) -> Answer:
    form = _header(call, "content-type").startswith("application/x-www-form-urlencoded")
    blank = form and any(b"=" not in field for field in call.body.split(b"&") if field)
    return theirs.but(body=ours.body) if blank and _good(theirs) and _good(ours) else theirs


def _explain_header(call: Call, theirs: Answer, ours: Answer) -> Answer:
    old = r"/invocations|/models/[^/]+/invoke|/[^/]+(/[^/]+)?/predict"
    fits = re.fullmatch(old, call.path.partition("?")[0])
    return _body_at("explain", "url_path")(call, theirs, ours) if fits else theirs


@_taken_over
def _v1_instances(call: Call, theirs: Answer, ours: Answer) -> bool:
    asked = _json(call.body)
    if not call.path.startswith("/v1/models/") or not isinstance(asked, dict) or not asked.get("instances"):
        return False
    if "split_instances=false" in _message(ours):
        return True
    # Theirs may be a list of predictions too: then the values count.
    value, answered = _json(theirs.body), _json(ours.body)
    theirs_too = (
        _good(theirs) and isinstance(value, dict) and bool({"predictions", "explanations"} & value.keys())
    )
    return _good(ours) and isinstance(answered, dict) and "predictions" in answered and not theirs_too


@_taken_over
def _v2(call: Call, theirs: Answer, ours: Answer) -> bool:
    no_route = _message(theirs).startswith("Requested resource is not found")
    versioned = re.match(r"/v2/models/[^/]+/versions/", call.path)
    # Live, ready and metadata: TorchServe has them if ts_open_inference_protocol is set.
    public = re.fullmatch(r"/v2(/health/(live|ready)|/models/[^/]+)?/?", call.path)
    tensors = b'"inputs"' in call.body and "split_instances=false" in _message(ours)
    return (no_route and ours.status != theirs.status and bool(versioned or public)) or tensors


@_taken_over
def _strict_bodies(call: Call, _theirs: Answer, ours: Answer) -> bool:
    reasons = (
        "no instances in the request: ",
        "can't Unmarshal body: ",
        "the request is not an inference request: ",
    )
    return _by_protocol(call) and ours.status == 400 and _message(ours).startswith(reasons)


@_taken_over
def _urls(call: Call, theirs: Answer, ours: Answer) -> bool:
    taken = _message(ours) == _message(theirs) and _message(ours).startswith("Model file already exists")
    local = "file://" in unquote_plus(call.path) and "does not match any allowed URL" in _message(ours)
    return _registers(call) and ((taken and ours.status == 409) or (local and ours.status == 404))


def _numbers(call: Call, theirs: Answer, ours: Answer) -> Answer:
    refused = ours.status == 400 and re.match(r"\w+=\S+: a whole number of at least \d", _message(ours))
    if refused and call.method in {"POST", "PUT"}:
        return ours
    odd = re.search(rb'"batchSize": (0|-\d+)|"maxBatchDelay": -\d', theirs.body or b"")
    return _described_at("batchSize", "maxBatchDelay")(call, theirs, ours) if odd else theirs


@_taken_over
def _json_registration(call: Call, theirs: Answer, ours: Answer) -> bool:
    unreadable = _message(ours).startswith(("The body is not valid JSON", "The body must be a JSON object"))
    return _registers(call) and theirs.status == 500 and ours.status == 400 and unreadable


@_taken_over
def _archives(call: Call, theirs: Answer, ours: Answer) -> bool:
    unread = _message(theirs).startswith(("Failed to save model: ", "Model name is not defined."))
    return _registers(call) and unread and _good(ours)


@_taken_over
def _checked_archives(call: Call, _theirs: Answer, ours: Answer) -> bool:
    said = _json(ours.body)
    if not isinstance(said, dict):
        return False
    return _registers(call) and ours.status == 400 and bool(said.get("type") == "InvalidModelException")


@_taken_over
def _empty_configuration(call: Call, theirs: Answer, ours: Answer) -> bool:
    return _registers(call) and _good(ours) and '"yamlMap" is null' in _message(theirs)


def _parallel_type(call: Call, theirs: Answer, ours: Answer) -> Answer:
    unset = b'"parallelType": ""' in (theirs.body or b"")
    return _described_at("parallelType")(call, theirs, ours) if unset else theirs


@_taken_over
def _workflow_errors(call: Call, theirs: Answer, ours: Answer) -> bool:
    said = _json(ours.body)
    kind = said.get("type", "") if isinstance(said, dict) else ""
    refused = kind in {"InvalidWorkflowException", "InvalidDAGException", "WorkflowNotFoundException"}
    return call.path.startswith("/workflows") and refused and theirs.status != 404


@_taken_over
def _workflow_accepted(call: Call, theirs: Answer, ours: Answer) -> bool:
    return call.path.startswith("/workflows") and theirs.status in {404, 500} and _good(ours)


@_taken_over
def _workflow_ends(call: Call, theirs: Answer, ours: Answer) -> bool:
    return call.path.startswith("/wfpredict/") and "JsonReader" in _message(theirs) and _good(ours)


def _workflow_nodes(call: Call, theirs: Answer, ours: Answer) -> Answer:
    of_node = call.path.startswith("/models/") and "__" in call.path
    differ = _described_at("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
    return differ(call, theirs, ours) if of_node else theirs


@_taken_over
def _workflow_functions(call: Call, _theirs: Answer, ours: Answer) -> bool:
    return call.method == "GET" and call.path.startswith("/models") and b'.war"' in (ours.body or b"")


@_taken_over
def _workflow_models_gone(call: Call, theirs: Answer, ours: Answer) -> bool:
    if call.path.startswith("/workflows/"):
        return _message(theirs).startswith("Error while unregistering the workflow")
    return call.path.startswith("/wfpredict/") and _message(ours).startswith("Error executing ")


@_taken_over
def _workflow_options(call: Call, _theirs: Answer, ours: Answer) -> bool:
    return call.method == "OPTIONS" and call.path.startswith("/wfpredict/") and ours.status == 405


def _workflow_headers(call: Call, theirs: Answer, ours: Answer) -> Answer:
    told = plain_headers(theirs)
    return told if call.path.startswith("/wfpredict/") and told.body == ours.body else theirs


def plain_headers(answer: Answer) -> Answer:
    """With the headers of an ordinary prediction in the JSON of an answer, and in JSON that is text there."""
    body = answer.body or b""
    for quote in (b'"', b'\\"'):
        for name, value in ((b"explain", b"False"), (b"url_path", b"")):
            key = quote + name + quote + b": "
            body = body.replace(key + b"null", key + quote + value + quote)
    return answer.but(body=body)


@_taken_over
def _set_default(call: Call, _theirs: Answer, ours: Answer) -> bool:
    asked = call.method in {"GET", "DELETE"} and call.path.endswith("/set-default")
    return asked and ours.status == 405


@_taken_over
def _v1_alive(call: Call, theirs: Answer, ours: Answer) -> bool:
    alive = (call.method, call.path) == ("GET", "/") and _json(ours.body) == {"status": "alive"}
    return alive and theirs.status == 405


@_taken_over
def _v1_methods(call: Call, theirs: Answer, ours: Answer) -> bool:
    return call.path.startswith("/v1/models/") and (theirs.status, ours.status) == (404, 405)


# What differs between two runs


def _exposed(call: Call, theirs: Answer, ours: Answer) -> Answer:
    said, more = _message(theirs), _message(ours)
    if said != _FAILED or not more.startswith(f"{_FAILED}: "):
        return theirs
    return _body_at("message", "error", "request_id")(call, theirs, ours)


def _rounding(_call: Call, theirs: Answer, ours: Answer) -> Answer:
    a, b = _json(theirs.body), _json(ours.body)
    return theirs.but(body=ours.body) if a is not None and _close(a, b) else theirs


def _close(a: Any, b: Any) -> bool:
    """Whether both are the same but for the last digits of floating point numbers."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_close(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= _TOLERANCE * max(abs(a), abs(b), 1e-3)
    return bool(type(a) is type(b) and a == b)


CHANGES: Final[dict[str, Change]] = {
    "phrase": _standard_phrase,
    "content-type": _json_type,
    "v1-error": _kserve_error,
    "cause": _cause_of_failure,
    "openapi": _own_document,
    "metrics": _own_metrics,
    "labels": _plain_labels,
    "loader": _loader,
    "envelopes": _envelopes,
    "compact": _compact,
    "explanations": _explanations,
    "json-numbers": _json_numbers,
    "vocabulary": _vocabulary,
    "error-metric": _error_metric,
    "header-case": _header_case,
    "sequence-headers": _sequence_headers,
    "too-large": _too_large,
    "stream-flag": _stream_flag,
    "generators": _generators,
    "error-200": _error_200,
    "isolation": _isolation,
    "pictures": _pictures,
    "json": _json_texts,
    "describe-header": _describe_header,
    "form-fields": _form_fields,
    "explain-header": _explain_header,
    "v1-instances": _v1_instances,
    "v2": _v2,
    "strict-bodies": _strict_bodies,
    "urls": _urls,
    "numbers": _numbers,
    "json-registration": _json_registration,
    "archives": _archives,
    "null-fields": _loader,
    "checked-archives": _checked_archives,
    "empty-configuration": _empty_configuration,
    "timeouts": _described_at("responseTimeout", "startupTimeout"),
    "parallel-type": _parallel_type,
    "workflow-errors": _workflow_errors,
    "workflow-accepted": _workflow_accepted,
    "workflow-ends": _workflow_ends,
    "workflow-nodes": _workflow_nodes,
    "workflow-functions": _workflow_functions,
    "workflow-models-gone": _workflow_models_gone,
    "workflow-options": _workflow_options,
    "workflow-headers": _workflow_headers,
    "set-default": _set_default,
    "v1-alive": _v1_alive,
    "v1-methods": _v1_methods,
    "startup": _described_at("loadedAtStartup"),
    "exposed": _exposed,
    "rounding": _rounding,
}
"""By the names of the rules."""
