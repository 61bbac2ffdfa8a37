"""Where answers to predictions, and those of all routes, differ."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from modelserver.tools.migrate.changes import (
    BETTER,
    FAILED,
    OTHER,
    PHRASES,
    Rules,
    body_at,
    failed,
    good,
    header_of,
    message_of,
    parsed,
    pretty,
    registers,
)

if TYPE_CHECKING:
    from modelserver.tools.migrate.calls import Answer, Call

RULES = Rules()

_TYPES = {"application/json", "application/octet-stream", "text/plain; charset=utf-8"}


@RULES.changing("phrase", OTHER)
def _standard_phrase(_call: Call, theirs: Answer, _ours: Answer) -> Answer:
    """The status line of a prediction has its standard phrase (`200 OK`), which TorchServe leaves out or
    makes up.
    """
    made_up = re.fullmatch(r"(Client|Server) Error \(\d+\)", theirs.reason)
    if not theirs.status or (theirs.reason and not made_up):
        return theirs
    return theirs.but(reason=PHRASES.get(theirs.status, ""))


@RULES.changing("content-type", BETTER)
def _json_type(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """What a handler returns is sent as `application/json`, `text/plain; charset=utf-8` or
    `application/octet-stream`; TorchServe sends no content type. With its defaults, only JSON has one.
    """
    kind = ours.headers.get("content-type")
    if "content-type" in theirs.headers or call.port != "inference" or kind not in _TYPES:
        return theirs
    return theirs.but(headers={"content-type": kind})


@RULES.changing("v1-error", OTHER)
def _kserve_error(call: Call, theirs: Answer, _ours: Answer) -> Answer:
    """Errors on V1 and V2 routes, and for unknown paths and methods, have `error` besides TorchServe's
    fields, for KServe's clients, and a handler's exception is 500 there, as in KServe.
    """
    no_route = b", please refer to API document." in (theirs.body or b"")
    message = message_of(theirs)
    if not message or not (no_route or _by_protocol(call)):
        return theirs
    body = json.loads(theirs.body or b"")
    status = 500 if (theirs.status, message) == (503, FAILED) else theirs.status
    if message.startswith("Model not found: "):
        message = f"Model with name {message.removeprefix('Model not found: ')} does not exist."
    return theirs.but(
        status=status,
        reason=PHRASES.get(status, theirs.reason),
        body=pretty({**body, "code": status, "error": message}),
    )


@RULES.changing("cause", BETTER)
def _cause_of_failure(_call: Call, theirs: Answer, _ours: Answer) -> Answer:
    """When workers fail to start, TorchServe's message is followed by the cause and the last lines of
    output.
    """
    body = re.sub(rb'("Failed to start workers for model [^"]*)"', rb'\1. <cause>"', theirs.body or b"")
    return theirs.but(body=body)


@RULES.changing("openapi", OTHER)
def _own_document(_call: Call, theirs: Answer, ours: Answer) -> Answer:
    """The OpenAPI documents are modelserver's own."""
    documents = all((answer.body or b"").startswith(b'{\n  "openapi"') for answer in (theirs, ours))
    return theirs.but(body=None) if documents else theirs


@RULES.changing("metrics", OTHER)
def _own_metrics(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """`/metrics` is filled by default: `metrics_mode` is `prometheus`."""
    shown = call.port == "metrics" and call.path == "/metrics" and ours.status == 200
    return theirs.but(body=None) if shown else theirs


@RULES.changing("labels", OTHER)
def _plain_labels(call: Call, theirs: Answer, _ours: Answer) -> Answer:
    """The labels of a sample in `/metrics` have no comma behind the last one (they have under the compat
    defaults).
    """
    if call.port != "metrics" or theirs.body is None:
        return theirs
    return theirs.but(body=theirs.body.replace(b",} ", b"} "))


@RULES.taking_over("loader", BETTER)
def loader(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A class may be named (`file:Class`), lack `initialize`, and share its file with helper classes;
    TorchServe's worker does not start then.
    """
    return registers(call) and good(ours) and message_of(theirs).startswith("Failed to start workers")


@RULES.taking_over("envelopes", BETTER)
def _envelopes(call: Call, theirs: Answer, ours: Answer) -> bool:
    """With an envelope, a body without instances or inputs is a 400 with the reason; `json` takes bodies
    without a content type, and an empty list.
    """
    said = message_of(ours)
    asks = ("no instances in the request: ", "no inputs in the request: ")
    if theirs.status != 503:
        return False
    asked = parsed(call.body)
    answered = parsed(ours.body)
    instances = isinstance(asked, dict) and "instances" in asked
    takes = instances and isinstance(answered, dict) and "predictions" in answered
    return (ours.status == 400 and said.startswith(asks)) or (good(ours) and takes)


@RULES.changing("compact", OTHER)
def _compact(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """On V1 routes `predictions` and `explanations` are JSON without white space, of type
    `application/json`, under every envelope.
    """
    value = parsed(theirs.body)
    if not call.path.startswith("/v1/models/") or not isinstance(value, dict) or value != parsed(ours.body):
        return theirs
    return theirs.but(body=ours.body, headers={"content-type": ours.headers.get("content-type")})


@RULES.changing("explanations", BETTER)
def _explanations(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """A handler that cannot explain says so (501); the class to explain is a number, also from a form."""
    if not re.search(r"/explanations/|[:/]explain$", call.path):
        return theirs
    if ours.status == 501 and failed(theirs):
        return ours
    return theirs.but(body=re.sub(rb'"target": "(\d+)"', rb'"target": \1', theirs.body or b""))


@RULES.taking_over("json-numbers", BETTER)
def _json_numbers(call: Call, theirs: Answer, ours: Answer) -> bool:
    """`base_handler` takes numbers in JSON, and says what is wrong with anything else (400)."""
    if not failed(theirs):
        return False
    if ours.status == 400 and message_of(ours).startswith("the input is not JSON: numbers"):
        return True
    return good(ours) and isinstance(parsed(call.body), list) and isinstance(parsed(ours.body), list)


@RULES.taking_over("vocabulary", BETTER)
def _vocabulary(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A text handler's vocabulary may be a mapping of words to numbers; TorchServe needs torchtext's."""
    scores = parsed(ours.body)
    text = header_of(call, "content-type").startswith("text/")
    named = isinstance(scores, dict) and all(isinstance(score, float) for score in scores.values())
    return text and failed(theirs) and good(ours) and named


@RULES.changing("error-metric", BETTER)
def _error_metric(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """The series of `add_error` has its model's name too."""
    without = re.sub(rb'(?m)^(Error\{)ModelName="[^"]*",', rb"\1", ours.body or b"")
    same = without == re.sub(rb",\} ", b"} ", theirs.body or b"")
    return theirs.but(body=ours.body) if call.port == "metrics" and same else theirs


@RULES.changing("header-case", BETTER)
def _header_case(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """A handler finds a request header by its name in upper or lower case, as in HTTP."""
    # A shorter value may be anywhere in a body.
    given = [value.encode() for name, value in call.headers if name == name.lower() and len(value) > 2]
    seen = any(value in (ours.body or b"") and value not in (theirs.body or b"") for value in given)
    return theirs.but(body=ours.body) if seen and theirs.status == ours.status else theirs


@RULES.changing("sequence-headers", BETTER)
def _sequence_headers(_call: Call, theirs: Answer, ours: Answer) -> Answer:
    """The answers of a sequence name it, and say when it began: a client learns the id that it was given."""
    names = {"ts_request_sequence_id", "ts_request_sequence_start"} & ours.headers.keys()
    return theirs.but(headers={name: ours.headers[name] for name in names})


@RULES.taking_over("too-large", BETTER)
def _too_large(_call: Call, theirs: Answer, ours: Answer) -> bool:
    """413 has a JSON body and a request id; TorchServe closes without either."""
    return theirs.status == ours.status == 413 and "x-request-id" not in theirs.headers


@RULES.changing("stream-flag", OTHER)
def _stream_flag(_call: Call, theirs: Answer, _ours: Answer) -> Answer:
    """The header `ts_stream_next`, a flag between TorchServe's own processes, is not sent to clients."""
    return theirs.but(headers={"ts_stream_next": None})


@RULES.taking_over("generators", BETTER)
def _generators(_call: Call, theirs: Answer, ours: Answer) -> bool:
    """A generator that a handler returns for a request is streamed, part by part."""
    return message_of(theirs) == "Unsupported model output data type." and good(ours)


@RULES.taking_over("error-200", OTHER)
def _error_200(_call: Call, theirs: Answer, ours: Answer) -> bool:
    """A `PredictionException` with the code 200 is answered like any other code, not with the word
    `error`.
    """
    said = parsed(ours.body)
    coded = isinstance(said, dict) and said.get("code") == 200
    return theirs.status == ours.status == 200 and theirs.body == b"error" and coded


@RULES.taking_over("isolation", BETTER)
def _isolation(_call: Call, theirs: Answer, ours: Answer) -> bool:
    """A failing request fails alone: the others in its batch are answered."""
    # A request that was computed alone did not fail because of others.
    return failed(theirs) and good(ours) and int(ours.headers.get("x-batch-size", "1")) > 1


@RULES.taking_over("pictures", BETTER)
def _pictures(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A picture that cannot be read is the client's fault: 400 with the reason, for its own request only.
    Grey pictures are converted.
    """
    if not failed(theirs):
        return False
    reasons = r"the \d+ bytes are not a picture|no picture: |the picture is damaged"
    if ours.status == 400 and re.match(reasons, message_of(ours)):
        return True
    return good(ours) and _not_rgb(call.body)


@RULES.changing("json", BETTER)
def _json_texts(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """A JSON body in UTF-16 or with a byte order mark is parsed too."""
    odd = call.body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    applies = odd and "json" in header_of(call, "content-type").lower() and good(theirs) and good(ours)
    return theirs.but(body=ours.body) if applies else theirs


@RULES.changing("describe-header", BETTER)
def _describe_header(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """A client cannot set the header `describe`, with which the server asks a handler to describe itself."""
    return body_at("describe")(call, theirs, ours) if header_of(call, "describe") else theirs


@RULES.changing("form-fields", BETTER)
def _form_fields(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """A field of an urlencoded body without `=` is kept with an empty value; the whole of a JSON text
    sent with `curl -d` is its key.
    """
    form = header_of(call, "content-type").startswith("application/x-www-form-urlencoded")
    blank = form and any(b"=" not in field for field in call.body.split(b"&") if field)
    return theirs.but(body=ours.body) if blank and good(theirs) and good(ours) else theirs


@RULES.changing("explain-header", OTHER)
def _explain_header(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """The request headers `explain` and `url_path` are there for handlers on every route, not on some
    only.
    """
    old = r"/invocations|/models/[^/]+/invoke|/[^/]+(/[^/]+)?/predict"
    fits = re.fullmatch(old, call.path.partition("?")[0])
    return body_at("explain", "url_path")(call, theirs, ours) if fits else theirs


@RULES.taking_over("v1-instances", BETTER)
def _v1_instances(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A V1 body with a list of `instances` is split for every handler: each is a row of a batch, and the
    answer is `{"predictions": …}` (`split_instances=false` passes bodies through).
    """
    asked = parsed(call.body)
    if not call.path.startswith("/v1/models/") or not isinstance(asked, dict) or not asked.get("instances"):
        return False
    if "split_instances=false" in message_of(ours):
        return True
    # Theirs may be a list of predictions too: then the values count.
    value, answered = parsed(theirs.body), parsed(ours.body)
    theirs_too = (
        good(theirs) and isinstance(value, dict) and bool({"predictions", "explanations"} & value.keys())
    )
    return good(ours) and isinstance(answered, dict) and "predictions" in answered and not theirs_too


@RULES.taking_over("v2", BETTER)
def _v2(call: Call, theirs: Answer, ours: Answer) -> bool:
    """V2 routes are those of the Open Inference Protocol: bodies of tensors are split into rows, a
    version may be named.
    """
    no_route = message_of(theirs).startswith("Requested resource is not found")
    versioned = re.match(r"/v2/models/[^/]+/versions/", call.path)
    # Live, ready and metadata: TorchServe has them if ts_open_inference_protocol is set.
    public = re.fullmatch(r"/v2(/health/(live|ready)|/models/[^/]+)?/?", call.path)
    tensors = b'"inputs"' in call.body and "split_instances=false" in message_of(ours)
    return (no_route and ours.status != theirs.status and bool(versioned or public)) or tensors


@RULES.taking_over("strict-bodies", OTHER)
def _strict_bodies(call: Call, _theirs: Answer, ours: Answer) -> bool:
    """On V1 and V2 routes a body that does not follow the protocol is 400 for every model;
    `split_instances=false`, and `compat_defaults=torchserve`, pass it to the handler as TorchServe
    does.
    """
    reasons = (
        "no instances in the request: ",
        "can't Unmarshal body: ",
        "the request is not an inference request: ",
    )
    return _by_protocol(call) and ours.status == 400 and message_of(ours).startswith(reasons)


def _by_protocol(call: Call) -> bool:
    return call.path.startswith(("/v1/", "/v2/"))


def _not_rgb(body: bytes) -> bool:
    """Whether it has a picture of other channels than red, green and blue."""
    start = body.find(b"\x89PNG\r\n\x1a\n")
    if start >= 0:
        return body[start + 25 : start + 26] != b"\x02"
    frame = re.search(rb"\xff[\xc0-\xc2]..\x08....(.)", body, re.DOTALL)
    return frame is not None and frame[1] != b"\x03"
