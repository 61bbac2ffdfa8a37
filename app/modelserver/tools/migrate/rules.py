"""All differences between responses of modelserver and TorchServe 0.12.0, with the reasons.

The migration guide has this list, and tests compare it with recorded responses.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

from modelserver.ext.rollout.agreement import Tolerance, agree, pairs
from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.changes import (
    BETTER,
    FAILED,
    OTHER,
    PHRASES,
    Rule,
    Rules,
    body_at,
    described_at,
    failed,
    good,
    header_of,
    message_of,
    parsed,
    pretty,
    registers,
)
from modelserver.tools.migrate.comparison import mismatches, without_additions
from modelserver.tools.migrate.grpc_calls import METHOD

RULES = Rules()
"""All differences between the two servers."""
OF_THE_RUN = Rules()
"""Rules that the recorded comparison does not need: they depend on the start, a setting or the machine."""
VARIES = Rule(
    "varies",
    OTHER,
    "TorchServe itself sends a different response to a second identical request.",
    lambda _call, reference, _ours: reference,
)
"""Not a rule on a pair of answers: it needs two from TorchServe."""
_ABSENT = "Model not found: ", "Model version: "
_TOLERANCE = Tolerance(1e-3, 1e-6)  # of floating point numbers


def explain(call: Probe, reference: Response, ours: Response) -> list[tuple[Rule, ...]]:
    """The fewest rules that together explain everything that is not the same; several if each would do.

    Both answers are masked. Empty if no rules do.
    """
    ours = ours.but(body=without_additions(ours.body or b""))
    able = [rule for rule in (*RULES, *OF_THE_RUN) if rule.change(call, reference, ours) != reference]
    for size in range(1, len(able) + 1):
        sufficient = [rules for rules in combinations(able, size) if _suffice(rules, call, reference, ours)]
        if sufficient:
            return sufficient
    return []


def _suffice(rules: tuple[Rule, ...], call: Probe, reference: Response, ours: Response) -> bool:
    answer = reference
    for rule in rules:
        answer = rule.change(call, answer, ours)
    return not mismatches(answer, ours)


@OF_THE_RUN.changing("startup", OTHER)
def _startup(call: Probe, reference: Response, ours: Response) -> Response:
    """`loadedAtStartup` is true of versions that were loaded at the start; TorchServe's is true of all
    versions of a model that had one then, or that a snapshot restored.
    """
    return described_at(call, reference, ours, "loadedAtStartup")


@OF_THE_RUN.changing("exposed", BETTER)
def _exposed(call: Probe, reference: Response, ours: Response) -> Response:
    """For clients on the same machine the message also names the exception, the line in the handler and
    what to do, and a 404 of a model which models there are (`expose_errors=false` tells nobody).
    """
    if call.method == METHOD:
        (message, reference_end), (longer, our_end) = (
            _of_java(answer.body or b"") for answer in (reference, ours)
        )
        explained = _is_extended(message, longer) and reference_end == our_end
        return reference.but(body=ours.body) if explained else reference
    if not _is_extended(message_of(reference), message_of(ours)):
        return reference
    return body_at(reference, ours, "message", "error", "request_id")


def _is_extended(message: str, longer: str) -> bool:
    """Whether the second message is the first, with what is told beside it."""
    if message.startswith(_ABSENT):
        return longer.startswith(f"{message}. There ")
    return message == FAILED and longer.startswith(f"{FAILED}: ")


def _of_java(text: bytes) -> tuple[str, str]:
    """The message of an error over gRPC, and Java's class on its last line."""
    message, _, name = text.decode("utf-8", "replace").rpartition("\n")
    return message, name


@OF_THE_RUN.changing("rounding", OTHER)
def _rounding(_call: Probe, reference: Response, ours: Response) -> Response:
    """Floating point numbers differ in their last digits, by less than one in a thousand: another version
    of torch or another machine computes so.
    """
    a, b = parsed(reference.body), parsed(ours.body)
    return reference.but(body=ours.body) if a is not None and _close(a, b) else reference


def _close(a: Any, b: Any) -> bool:
    """Whether both are the same but for the last digits of floating point numbers."""
    return all(
        type(one) is type(other) and (one == other if isinstance(one, int) else agree(one, other, _TOLERANCE))
        for _, one, other in pairs(a, b, ordered=True)
    )


# Predictions, and all routes

_TYPES = {"application/json", "application/octet-stream", "text/plain; charset=utf-8"}


@RULES.changing("phrase", OTHER)
def _standard_phrase(_call: Probe, reference: Response, _ours: Response) -> Response:
    """The status line of a prediction has the standard phrase (`200 OK`); TorchServe's has none, or another
    one.
    """
    made_up = re.fullmatch(r"(Client|Server) Error \(\d+\)", reference.reason)
    if not reference.status or (reference.reason and not made_up):
        return reference
    return reference.but(reason=PHRASES.get(reference.status, ""))


@RULES.changing("content-type", BETTER)
def _json_type(call: Probe, reference: Response, ours: Response) -> Response:
    """What a handler returns is sent as `application/json`, `text/plain; charset=utf-8` or
    `application/octet-stream`; TorchServe sends no content type. With its defaults, only JSON has one.
    """
    kind = ours.headers.get("content-type")
    if "content-type" in reference.headers or call.port != "inference" or kind not in _TYPES:
        return reference
    return reference.but(headers={"content-type": kind})


@RULES.changing("v1-error", OTHER)
def _kserve_error(call: Probe, reference: Response, _ours: Response) -> Response:
    """Errors on V1 and V2 routes, and for unknown paths and methods, have `error` besides TorchServe's
    fields, for KServe's clients, and a handler's exception is 500 there, as in KServe.
    """
    no_route = b", please refer to API document." in (reference.body or b"")
    message = message_of(reference)
    if not message or not (no_route or _by_protocol(call)):
        return reference
    body = json.loads(reference.body or b"")
    status = 500 if (reference.status, message) == (503, FAILED) else reference.status
    if message.startswith("Model not found: "):
        message = f"Model with name {message.removeprefix('Model not found: ')} does not exist."
    return reference.but(
        status=status,
        reason=PHRASES.get(status, reference.reason),
        body=pretty({**body, "code": status, "error": message}),
    )


@RULES.changing("cause", BETTER)
def _cause_of_failure(_call: Probe, reference: Response, _ours: Response) -> Response:
    """When workers fail to start, TorchServe's message is followed by the cause and the last lines of
    output.
    """
    body = re.sub(rb'("Failed to start workers for model [^"]*)"', rb'\1. <cause>"', reference.body or b"")
    return reference.but(body=body)


@RULES.changing("openapi", OTHER)
def _own_document(_call: Probe, reference: Response, ours: Response) -> Response:
    """The OpenAPI documents are modelserver's own."""
    documents = all((answer.body or b"").startswith(b'{\n  "openapi"') for answer in (reference, ours))
    return reference.but(body=None) if documents else reference


@RULES.changing("metrics", OTHER)
def _own_metrics(call: Probe, reference: Response, ours: Response) -> Response:
    """`/metrics` has metrics by default, as the default of `metrics_mode` is `prometheus`."""
    is_metrics = call.port == "metrics" and call.path == "/metrics" and ours.status == 200
    return reference.but(body=None) if is_metrics else reference


@RULES.changing("labels", OTHER)
def _plain_labels(call: Probe, reference: Response, _ours: Response) -> Response:
    """There is no comma after the last label of a sample in `/metrics`, except with TorchServe's defaults."""
    if call.port != "metrics" or reference.body is None:
        return reference
    return reference.but(body=reference.body.replace(b",} ", b"} "))


@RULES.taking_over("loader", BETTER)
def _loader(call: Probe, reference: Response, ours: Response) -> bool:
    """A class may be named (`file:Class`), lack `initialize`, and share its file with helper classes;
    TorchServe's worker does not start then.
    """
    return registers(call) and good(ours) and message_of(reference).startswith("Failed to start workers")


@RULES.taking_over("envelopes", BETTER)
def _envelopes(call: Probe, reference: Response, ours: Response) -> bool:
    """With an envelope, a body without instances or inputs is a 400 with the reason; `json` takes bodies
    without a content type, and an empty list.
    """
    message = message_of(ours)
    reasons = ("no instances in the request: ", "no inputs in the request: ")
    if reference.status != 503:
        return False
    request = parsed(call.body)
    response = parsed(ours.body)
    instances = isinstance(request, dict) and "instances" in request
    takes = instances and isinstance(response, dict) and "predictions" in response
    return (ours.status == 400 and message.startswith(reasons)) or (good(ours) and takes)


@RULES.changing("compact", OTHER)
def _compact(call: Probe, reference: Response, ours: Response) -> Response:
    """On V1 routes `predictions` and `explanations` are JSON without white space, of type
    `application/json`, under every envelope.
    """
    value = parsed(reference.body)
    if not call.path.startswith("/v1/models/") or not isinstance(value, dict) or value != parsed(ours.body):
        return reference
    return reference.but(body=ours.body, headers={"content-type": ours.headers.get("content-type")})


@RULES.changing("explanations", BETTER)
def _explanations(call: Probe, reference: Response, ours: Response) -> Response:
    """For a handler that cannot explain, the response is 501; the class to explain is a number, also in a
    form.
    """
    if not re.search(r"/explanations/|[:/]explain$", call.path):
        return reference
    if ours.status == 501 and failed(reference):
        return ours
    return reference.but(body=re.sub(rb'"target": "(\d+)"', rb'"target": \1', reference.body or b""))


@RULES.taking_over("json-numbers", BETTER)
def _json_numbers(call: Probe, reference: Response, ours: Response) -> bool:
    """`base_handler` accepts numbers in JSON, and refuses other bodies with the reason (400)."""
    if not failed(reference):
        return False
    if ours.status == 400 and message_of(ours).startswith("the input is not JSON: numbers"):
        return True
    return good(ours) and isinstance(parsed(call.body), list) and isinstance(parsed(ours.body), list)


@RULES.taking_over("vocabulary", BETTER)
def _vocabulary(call: Probe, reference: Response, ours: Response) -> bool:
    """A text handler's vocabulary may be a mapping of words to numbers; TorchServe needs torchtext's."""
    scores = parsed(ours.body)
    text = header_of(call, "content-type").startswith("text/")
    named = isinstance(scores, dict) and all(isinstance(score, float) for score in scores.values())
    return text and failed(reference) and good(ours) and named


@RULES.changing("error-metric", BETTER)
def _error_metric(call: Probe, reference: Response, ours: Response) -> Response:
    """The series of `add_error` has the label of the model's name too."""
    without = re.sub(rb'(?m)^(Error\{)ModelName="[^"]*",', rb"\1", ours.body or b"")
    same = without == re.sub(rb",\} ", b"} ", reference.body or b"")
    return reference.but(body=ours.body) if call.port == "metrics" and same else reference


@RULES.changing("header-case", BETTER)
def _header_case(call: Probe, reference: Response, ours: Response) -> Response:
    """A handler finds a request header by its name in upper or lower case, as in HTTP."""
    # A shorter value may be anywhere in a body.
    values = [value.encode() for name, value in call.headers if name == name.lower() and len(value) > 2]
    seen = any(value in (ours.body or b"") and value not in (reference.body or b"") for value in values)
    return reference.but(body=ours.body) if seen and reference.status == ours.status else reference


@RULES.changing("sequence-headers", BETTER)
def _sequence_headers(_call: Probe, reference: Response, ours: Response) -> Response:
    """Responses in a sequence have headers with its id and with its start, so a client receives the id."""
    names = {"ts_request_sequence_id", "ts_request_sequence_start"} & ours.headers.keys()
    return reference.but(headers={name: ours.headers[name] for name in names})


@RULES.taking_over("too-large", BETTER)
def _too_large(_call: Probe, reference: Response, ours: Response) -> bool:
    """A 413 has a JSON body and a request id; TorchServe closes the connection without either."""
    return reference.status == ours.status == 413 and "x-request-id" not in reference.headers


@RULES.changing("stream-flag", OTHER)
def _stream_flag(_call: Probe, reference: Response, _ours: Response) -> Response:
    """The header `ts_stream_next`, a flag between TorchServe's own processes, is not sent to clients."""
    return reference.but(headers={"ts_stream_next": None})


@RULES.taking_over("generators", BETTER)
def _generators(_call: Probe, reference: Response, ours: Response) -> bool:
    """A generator that a handler returns for a request is streamed, part by part."""
    return message_of(reference) == "Unsupported model output data type." and good(ours)


@RULES.taking_over("error-200", OTHER)
def _error_200(_call: Probe, reference: Response, ours: Response) -> bool:
    """A `PredictionException` with the code 200 is handled like one with any other code, not with the word
    `error`.
    """
    response = parsed(ours.body)
    coded = isinstance(response, dict) and response.get("code") == 200
    return reference.status == ours.status == 200 and reference.body == b"error" and coded


@RULES.taking_over("isolation", BETTER)
def _isolation(_call: Probe, reference: Response, ours: Response) -> bool:
    """If a request fails, the other requests in its batch do not."""
    # A request that was computed alone did not fail because of others.
    return failed(reference) and good(ours) and int(ours.headers.get("x-batch-size", "1")) > 1


@RULES.taking_over("pictures", BETTER)
def _pictures(call: Probe, reference: Response, ours: Response) -> bool:
    """A picture that cannot be read is a client error: 400 with the reason, only for its own request.
    Grey pictures are converted.
    """
    if not failed(reference):
        return False
    reasons = r"the \d+ bytes are not a picture|no picture: |the picture is damaged"
    if ours.status == 400 and re.match(reasons, message_of(ours)):
        return True
    return good(ours) and _not_rgb(call.body)


@RULES.changing("json", BETTER)
def _json_texts(call: Probe, reference: Response, ours: Response) -> Response:
    """A JSON body in UTF-16 or with a byte order mark is parsed too."""
    odd = call.body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    applies = odd and "json" in header_of(call, "content-type").lower() and good(reference) and good(ours)
    return reference.but(body=ours.body) if applies else reference


@RULES.changing("describe-header", BETTER)
def _describe_header(call: Probe, reference: Response, ours: Response) -> Response:
    """A client cannot set the header `describe`, with which the server asks a handler to describe itself."""
    return body_at(reference, ours, "describe") if header_of(call, "describe") else reference


@RULES.changing("form-fields", BETTER)
def _form_fields(call: Probe, reference: Response, ours: Response) -> Response:
    """A field of an urlencoded body without `=` has an empty value; the whole of a JSON text
    sent with `curl -d` is its key.
    """
    form = header_of(call, "content-type").startswith("application/x-www-form-urlencoded")
    blank = form and any(b"=" not in field for field in call.body.split(b"&") if field)
    return reference.but(body=ours.body) if blank and good(reference) and good(ours) else reference


@RULES.changing("explain-header", OTHER)
def _explain_header(call: Probe, reference: Response, ours: Response) -> Response:
    """Handlers get the request headers `explain` and `url_path` on every route, not only on some."""
    old = r"/invocations|/models/[^/]+/invoke|/[^/]+(/[^/]+)?/predict"
    fits = re.fullmatch(old, call.path.partition("?")[0])
    return body_at(reference, ours, "explain", "url_path") if fits else reference


@RULES.taking_over("v1-instances", BETTER)
def _v1_instances(call: Probe, reference: Response, ours: Response) -> bool:
    """A V1 body with a list of `instances` is split for every handler: each is a row of a batch, and the
    answer is `{"predictions": …}` (`split_instances=false` passes bodies through).
    """
    request = parsed(call.body)
    has_instances = isinstance(request, dict) and bool(request.get("instances"))
    if not has_instances or not call.path.startswith("/v1/models/"):
        return False
    if "split_instances=false" in message_of(ours):
        return True
    # If TorchServe answers with predictions too, their values are compared.
    value, response = parsed(reference.body), parsed(ours.body)
    keys = value.keys() if good(reference) and isinstance(value, dict) else set()
    has_reference = not keys.isdisjoint({"predictions", "explanations"})
    return good(ours) and isinstance(response, dict) and "predictions" in response and not has_reference


@RULES.taking_over("v2", BETTER)
def _v2(call: Probe, reference: Response, ours: Response) -> bool:
    """V2 routes are those of the Open Inference Protocol: bodies of tensors are split into rows, a
    version may be named.
    """
    no_route = message_of(reference).startswith("Requested resource is not found")
    versioned = re.match(r"/v2/models/[^/]+/versions/", call.path)
    # TorchServe has live, ready and metadata only if ts_open_inference_protocol is set.
    public = re.fullmatch(r"/v2(/health/(live|ready)|/models/[^/]+)?/?", call.path)
    tensors = b'"inputs"' in call.body and "split_instances=false" in message_of(ours)
    return (no_route and ours.status != reference.status and bool(versioned or public)) or tensors


@RULES.taking_over("strict-bodies", OTHER)
def _strict_bodies(call: Probe, _reference: Response, ours: Response) -> bool:
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


def _by_protocol(call: Probe) -> bool:
    return call.path.startswith(("/v1/", "/v2/"))


def _not_rgb(body: bytes) -> bool:
    """Whether it has a picture of other channels than red, green and blue."""
    start = body.find(b"\x89PNG\r\n\x1a\n")
    if start >= 0:
        return body[start + 25 : start + 26] != b"\x02"
    frame = re.search(rb"\xff[\xc0-\xc2]..\x08....(.)", body, re.DOTALL)
    return frame is not None and frame[1] != b"\x03"


# The management API, workflows and other paths


@RULES.taking_over("urls", OTHER)
def _urls(call: Probe, reference: Response, ours: Response) -> bool:
    """`file://`, and `s3://`, `gs://`, `az://` and `hf://`, which TorchServe does not know, are only for
    URLs in the operator's `allowed_urls` (404 otherwise); a download whose name is taken is a conflict (409,
    not 500).
    """
    message = message_of(ours)
    taken = message == message_of(reference) and message.startswith("Model file already exists")
    refused = ours.status == 404 and "needs an allowed_urls" in message
    return registers(call) and ((taken and ours.status == 409) or refused)


@RULES.changing("numbers", BETTER)
def _numbers(call: Probe, reference: Response, ours: Response) -> Response:
    """Invalid numbers are refused or replaced by the nearest valid one; `max_batch_delay`
    missing from a JSON body is the default.
    """
    refused = ours.status == 400 and re.match(r"\w+=\S+: a whole number of at least \d", message_of(ours))
    if refused and call.method in {"POST", "PUT"}:
        return ours
    odd = re.search(rb'"batchSize": (0|-\d+)|"maxBatchDelay": -\d', reference.body or b"")
    return described_at(call, reference, ours, "batchSize", "maxBatchDelay") if odd else reference


@RULES.taking_over("json-registration", BETTER)
def _json_registration(call: Probe, reference: Response, ours: Response) -> bool:
    """A JSON body of a registration that cannot be read is 400 with the reason, not 500."""
    unreadable = message_of(ours).startswith(("The body is not valid JSON", "The body must be a JSON object"))
    return registers(call) and reference.status == 500 and ours.status == 400 and unreadable


@RULES.taking_over("archives", BETTER)
def _archives(call: Probe, reference: Response, ours: Response) -> bool:
    """The format of an archive is detected by its content, not its suffix: a `.zip` and a tar without a top
    folder load too.
    """
    unread = message_of(reference).startswith(("Failed to save model: ", "Model name is not defined."))
    return registers(call) and unread and good(ours)


@RULES.changing("null-fields", BETTER)
def _null_fields(call: Probe, reference: Response, ours: Response) -> Response:
    """A manifest field that is `null` counts as not there; TorchServe's workers fail on it."""
    return _loader.change(call, reference, ours)


@RULES.taking_over("checked-archives", BETTER)
def _checked_archives(call: Probe, _reference: Response, ours: Response) -> bool:
    """An archive that can never be served is refused when it is registered; the error has the reason and the
    archive's name. Reasons are: no handler, a missing or broken `model-config.yaml`, a manifest that cannot
    be read, a file that is no archive.
    """
    response = parsed(ours.body)
    if not isinstance(response, dict):
        return False
    return registers(call) and ours.status == 400 and bool(response.get("type") == "InvalidModelException")


@RULES.taking_over("empty-configuration", BETTER)
def _empty_configuration(call: Probe, reference: Response, ours: Response) -> bool:
    """An empty `model-config.yaml` is ignored; TorchServe's response is 500."""
    return registers(call) and good(ours) and '"yamlMap" is null' in message_of(reference)


@RULES.changing("timeouts", BETTER)
def _timeouts(call: Probe, reference: Response, ours: Response) -> Response:
    """A timeout in the registration overrides all others, and one in `models=` applies if the archive's
    `model-config.yaml` sets none; in TorchServe the registration's has the lowest priority, and a
    `model-config.yaml` without timeouts overrides both.
    """
    return described_at(call, reference, ours, "responseTimeout", "startupTimeout")


@RULES.changing("parallel-type", OTHER)
def _parallel_type(call: Probe, reference: Response, ours: Response) -> Response:
    """The description of a model has a `parallelType` that has no `parallelLevel`; it has no effect with
    either server.
    """
    unset = b'"parallelType": ""' in (reference.body or b"")
    return described_at(call, reference, ours, "parallelType") if unset else reference


@RULES.taking_over("workflow-errors", BETTER)
def _workflow_errors(call: Probe, reference: Response, ours: Response) -> bool:
    """Archives and specifications of workflows that cannot be served are refused with 400 and the reason;
    TorchServe often responds with 500 and a Java exception. An unknown function is refused before workers
    start. A `file://` URL needs an `allowed_urls`, as for models.
    """
    response = parsed(ours.body)
    kind = response.get("type", "") if isinstance(response, dict) else ""
    refused = kind in {"InvalidWorkflowException", "InvalidDAGException", "WorkflowNotFoundException"}
    return call.path.startswith("/workflows") and refused and reference.status != 404


@RULES.taking_over("workflow-accepted", BETTER)
def _workflow_accepted(call: Probe, reference: Response, ours: Response) -> bool:
    """A workflow that has only models needs no handler file, and a JSON body that registers a workflow needs
    no timeouts; TorchServe refuses both.
    """
    return call.path.startswith("/workflows") and reference.status in {404, 500} and good(ours)


@RULES.taking_over("workflow-ends", BETTER)
def _workflow_ends(call: Probe, reference: Response, ours: Response) -> bool:
    """If a workflow ends with several nodes, their results are joined in one JSON object, in the order of the
    specification; results that are not JSON become text. TorchServe fails on these.
    """
    return call.path.startswith("/wfpredict/") and "JsonReader" in message_of(reference) and good(ours)


@RULES.changing("workflow-nodes", OTHER)
def _workflow_nodes(call: Probe, reference: Response, ours: Response) -> Response:
    """If a workflow's specification does not set an option of a model, the model's archive and the settings
    do. Common options apply wherever they are in the specification, and a model starts with `min-workers`.
    In TorchServe they apply only to the models after them, and a model starts with `max-workers` and waits
    50 ms for batches.
    """
    of_node = call.path.startswith("/models/") and "__" in call.path
    keys = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
    return described_at(call, reference, ours, *keys) if of_node else reference


@RULES.taking_over("workflow-functions", OTHER)
def _workflow_functions(call: Probe, _reference: Response, ours: Response) -> bool:
    """The functions of workflows are listed and described as models, with the URL of their archive."""
    return call.method == "GET" and call.path.startswith("/models") and b'.war"' in (ours.body or b"")


@RULES.taking_over("workflow-models-gone", BETTER)
def _workflow_models_gone(call: Probe, reference: Response, ours: Response) -> bool:
    """If a model of a workflow was unregistered, the error names the node; if the model has no workers, it is
    503. The workflow can be unregistered. TorchServe responds with 500 and the model's name, and cannot
    unregister it.
    """
    if call.path.startswith("/workflows/"):
        return message_of(reference).startswith("Error while unregistering the workflow")
    return call.path.startswith("/wfpredict/") and message_of(ours).startswith("Error executing ")


@RULES.taking_over("workflow-options", OTHER)
def _workflow_options(call: Probe, _reference: Response, ours: Response) -> bool:
    """`OPTIONS` of a workflow is 405; TorchServe runs the workflow."""
    return call.method == "OPTIONS" and call.path.startswith("/wfpredict/") and ours.status == 405


@RULES.changing("workflow-headers", OTHER)
def _workflow_headers(call: Probe, reference: Response, ours: Response) -> Response:
    """The first model of a workflow receives the headers `explain` and `url_path`, as other models do."""
    if call.path.startswith("/wfpredict/"):
        # Later models do not get these headers: they see the first answer as text.
        for plain in (plain_headers(reference), plain_headers(reference, IN_TEXT)):
            if plain.body == ours.body:
                return plain
    return reference


@RULES.taking_over("set-default", BETTER)
def _set_default(call: Probe, _reference: Response, ours: Response) -> bool:
    """`GET` and `DELETE` of `…/set-default` are 405; TorchServe describes the model, or **unregisters**
    it.
    """
    is_action = call.method in {"GET", "DELETE"} and call.path.endswith("/set-default")
    return is_action and ours.status == 405


@RULES.taking_over("v1-alive", BETTER)
def _v1_alive(call: Probe, reference: Response, ours: Response) -> bool:
    """`GET /` of the inference address returns the status `alive`, which clients of KServe's V1 protocol use;
    TorchServe refuses it with 405, as modelserver does with `compat_defaults=torchserve`.
    """
    alive = (call.method, call.path) == ("GET", "/") and parsed(ours.body) == {"status": "alive"}
    return alive and reference.status == 405


@RULES.taking_over("v1-methods", OTHER)
def _v1_methods(call: Probe, reference: Response, ours: Response) -> bool:
    """An unknown V1 action is 405, not 404, on paths that also report a model's readiness."""
    return call.path.startswith("/v1/models/") and (reference.status, ours.status) == (404, 405)


IN_TEXT = (b'\\"',)
"""The quotes of JSON that is text in JSON."""


def plain_headers(answer: Response, quotes: tuple[bytes, ...] = (b'"', *IN_TEXT)) -> Response:
    """The answer with an ordinary prediction's headers in its JSON, and in JSON that is text there."""
    body = answer.body or b""
    for quote in quotes:
        for name, value in ((b"explain", b"False"), (b"url_path", b"")):
            key = quote + name + quote + b": "
            body = body.replace(key + b"null", key + quote + value + quote)
    return answer.but(body=body)
