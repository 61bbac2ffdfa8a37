"""What exactly modelserver is expected to answer where it answers otherwise than TorchServe 0.12.0.

The rules with their reasons are the product's (:mod:`modelserver.tools.migrate.rules`). Here is what those
that are about single answers expect of the calls of the comparison, to the byte. A rule that changes no
answer is stale, and a test says so.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tests.differential.chapters import Chapter

from modelserver.tools.migrate.calls import Probe, Response
from modelserver.tools.migrate.changes import PHRASES, Rule, pretty
from modelserver.tools.migrate.rules import IN_TEXT, RULES, plain_headers

# What single answers become


def error(status: int, kind: str, message: str) -> Callable[[Response], Response]:
    body = pretty({"code": status, "type": kind, "message": message})
    headers = {"connection": "close", "content-type": "application/json"}
    return lambda answer: answer.but(status=status, reason=PHRASES[status], body=body, headers=headers)


def missing_model(model: str) -> Callable[[Response], Response]:
    """What follows for calls to a model that modelserver refused to register."""
    return error(404, "ModelNotFoundException", f"Model not found: {model}")


def bad_request(message: str) -> Callable[[Response], Response]:
    """400."""
    return error(400, "BadRequestException", message)


def invalid(message: str) -> Callable[[Response], Response]:
    """400 for an archive."""
    return error(400, "InvalidModelException", message)


def success(body: bytes, content_type: str | None = "application/json") -> Callable[[Response], Response]:
    """200 where TorchServe fails."""
    headers = {"connection": "keep-alive", "content-type": content_type}
    return lambda answer: answer.but(status=200, reason="OK", body=body, headers=headers)


def description(status: str) -> Callable[[Response], Response]:
    """200 with a status text."""
    return success(pretty({"status": status}))


def registered(model: str, workers: int = 0) -> Callable[[Response], Response]:
    text = f'Model "{model}" Version: 1.0 registered with {workers} initial workers'
    return description(text + ("" if workers else ". Use scale workers API to add workers for the model."))


def unregistered(model: str) -> Callable[[Response], Response]:
    return description(f'Model "{model}" unregistered')


def replaced(old: str, new: str) -> Callable[[Response], Response]:
    return lambda answer: answer.but(body=(answer.body or b"").replace(old.encode(), new.encode()))


# What whole groups of answers become


def _sequence(name: str, *, starts: bool = False) -> Callable[[Response], Response]:
    headers = {"ts_request_sequence_id": name, "ts_request_sequence_start": "true" if starts else None}
    return lambda answer: answer.but(headers=headers)


def _bad_v1(message: str) -> Callable[[Response], Response]:
    """400 on a route of KServe's, and for its clients."""
    body = pretty({"code": 400, "type": "BadRequestException", "message": message, "error": message})
    return lambda answer: bad_request(message)(answer).but(body=body)


_NO_INSTANCES = 'no instances in the request: the body needs "instances", a list of at least one instance'
_CUT_SHORT = "the request is not an inference request: Input data was truncated"
_NO_TENSORS = "the request is not an inference request: Object missing required field `inputs`"


def _strict_bodies() -> dict[str, Callable[[Response], Response]]:
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


def _compact(answer: Response) -> Response:
    body = json.dumps(json.loads(answer.body or b""), separators=(",", ":")).encode()
    return answer.but(body=body, headers={"content-type": "application/json"})


def _enveloped() -> dict[str, Callable[[Response], Response]]:
    """Bodies that an envelope does not understand, and those that only TorchServe's does not."""
    none = 'no instances in the request: the body needs "instances", a list'
    inputs = 'no inputs in the request: the body needs "inputs", a list'
    result = {f"envelope_{name}/no instances": bad_request(none) for name in ("json", "kserve")}
    by_protocol = _bad_v1(f"{none} of at least one instance")
    result |= {f"envelope_{name}/no instances by protocol": by_protocol for name in ("json", "kserve")}
    return result | {
        "envelope_json/as octets": success(b'{"predictions": [["int", 1]]}', None),
        "envelope_json/as octets by protocol": success(_predictions(["int", 1])),
        "envelope_json/none": success(b'{"predictions": []}', None),
        "envelope_json/none by protocol": _bad_v1("no instances in the request: the list is empty"),
        "envelope_kservev2/no inputs": bad_request(inputs),
        "envelope_kservev2/no inputs by protocol": _bad_v1(inputs),
    }


def _loaded() -> dict[str, Callable[[Response], Response]]:
    """Handlers that TorchServe does not load."""
    answers = {"two_classes": b"helped", "no_initialize": b"went without", "class_named": b"answered, True"}
    result: dict[str, Callable[[Response], Response]] = {}
    for model, body in answers.items():
        result[f"styles/register {model}"] = registered(model, 1)
        result[f"styles/predict {model}"] = success(body, None)
        result[f"styles/unregister {model}"] = unregistered(model)
    return result


def _json_type(call: Probe, answer: Response) -> Response:
    if "content-type" in answer.headers or call.port != "inference" or not _was_encoded(call, answer):
        return answer
    return answer.but(headers={"content-type": "application/json"})


def _was_encoded(call: Probe, answer: Response) -> bool:
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


def _large_body(answer: Response) -> Response:
    message = "The request body is larger than max_request_size=100000 bytes."
    changed = error(413, "RequestEntityTooLargeException", message)(answer)
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
    """The facts that the handler ``tells`` returns for one instance."""
    headers = {"explain": "False", "url_path": "", "describe": None, "X-Asked": None}
    headers |= {"Content-Type": "application/json", "body": None, "data": None, "other": None}
    return {"row": "dict", "keys": [key], "values": {key: [kind, value]}, "headers": headers, "rows": 1}


def _edited(answer: Response, edit: Callable[[dict[str, Any]], None]) -> Response:
    """A response of the handler ``tells`` with its values edited."""
    value = json.loads(answer.body or b"")
    edit(value)
    return answer.but(body=json.dumps(value, indent=2).encode())


def _form_blank(answer: Response) -> Response:
    def edit(value: dict[str, Any]) -> None:
        value["keys"].append("other")
        value["values"]["other"] = ["bytearray", ""]
        value["headers"]["other"] = {"content-type": ""}

    return _edited(answer, edit)


def _not_allowed(answer: Response) -> Response:
    message = "Requested method is not allowed, please refer to API document."
    changed = error(405, "MethodNotAllowedException", message)(answer)
    body = json.loads(changed.body or b"")
    return changed.but(body=pretty({**body, "error": message}))


def _checked_archives() -> dict[str, Callable[[Response], Response]]:
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
        "manifests/unregister m_no_handler",
        "manifests/unregister m_absent_config",
        "broken/unregister b_yaml",
        "broken/unregister b_yaml_tag",
    )
    return {
        **{name: invalid(message) for name, message in refusals.items()},
        **{name: missing_model(name.rpartition(" ")[2]) for name in gone},
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


def _empty_configurations() -> dict[str, Callable[[Response], Response]]:
    result = {}
    for name, model, numbers in (
        ("configurations/{} nothing", "c_nothing", (1, 100, 120, 120)),
        ("configurations/{} remark", "c_remark", (1, 100, 120, 120)),
        ("configurations/{} silent and parameters", "c_nothing", (9, 90, 33, 44)),
        ("table/{} c_nothing", "c_nothing", (6, 60, 66, 67)),
        ("table/{} c_nothing and parameters", "c_nothing", (9, 90, 33, 44)),
    ):
        result[name.format("register")] = registered(model)
        result[name.format("describe")] = success((_USUAL % (model, model, *numbers)).encode())
        result[name.format("unregister")] = unregistered(model)
    return result


def _timeouts(before: tuple[int, int], after: tuple[int, int]) -> Callable[[Response], Response]:
    text = '"responseTimeout": %d,\n    "startupTimeout": %d,'
    return replaced(text % before, text % after)


# What workflows become

_START = "DAG should have only one start node: "
_UNKNOWN = "it is neither among the models nor a function of the handler file."
_BAD_DAGS = {
    "w_cycle": "Not a valid DAG: there is a cycle, left -> right -> left",
    "w_pair": "Not a valid DAG: there is a cycle, left -> right -> left",
    "w_self": "Self loop exception: 'first' follows itself",
    "w_starts": f"{_START}nothing comes before 'left' and 'right'",
    "w_apart": f"{_START}nothing comes before 'first' and 'right'",
    "w_absent_function": f"Unknown node 'absent': {_UNKNOWN}",
    "w_no_dag": f"{_START}there is no node",
    "w_empty_dag": f"{_START}there is no node",
    "w_slash": f"Unknown node '../left': {_UNKNOWN}",
}
_PARSING = "Failed to parse yaml. flow.yaml: line"
_BAD_WORKFLOWS = {
    "management/register a model": "The archive has no WAR-INF/MANIFEST.json.",
    "specifications/register w_no_url": "flow.yaml: models.model: a url is needed",
    "specifications/register w_text_number": "flow.yaml: models.min-workers=two: a whole number from 0 to "
    "2147483647 is needed",
    "specifications/register w_text_node": "flow.yaml: dag.first=left: a list of nodes is needed",
    "specifications/register w_unknown_key": "flow.yaml: models.unknown=1: a model with a url is needed, or "
    "one of min-workers, max-workers, batch-size, max-batch-delay, retry-attempts, timeout-ms, load",
    "specifications/register w_bad_yaml": f"{_PARSING} 2: did not find expected node content",
    "specifications/register w_tagged": f"{_PARSING} 1: could not determine a constructor for the tag "
    "'tag:yaml.org,2002:python/object/apply:os.getcwd': only plain values are allowed, nothing that Python "
    "would have to build",
    "specifications/register w_list": f"{_PARSING} 1: a mapping (key: value lines) is needed",
    "specifications/register w_models_list": "flow.yaml: models=['a']: a mapping (key: value lines) is "
    "needed",
    "archives/register w_no_name": "Workflow name is not defined: the manifest has no workflowName, the "
    "request no workflow_name.",
    "archives/register w_no_spec": "WAR-INF/MANIFEST.json has no specFile.",
    "archives/register w_absent_spec": "The archive has no absent.yaml.",
    "archives/register w_outer_spec": "Invalid specFile '../flow.yaml' in WAR-INF/MANIFEST.json: '..' is not "
    "allowed.",
    "archives/register w_outer_handler": "Invalid handler '../functions.py' in WAR-INF/MANIFEST.json: '..' "
    "is not allowed.",
    "archives/register w_slip": "Invalid archive 'w_slip.war', entry '../w_slip_was_here.txt': '..' is not "
    "allowed.",
    "archives/register w_no_manifest": "The archive has no WAR-INF/MANIFEST.json.",
    "archives/register w_empty_manifest": "WAR-INF/MANIFEST.json has no specFile.",
    "archives/register w_cut_manifest": "WAR-INF/MANIFEST.json: Input data was truncated",
    "archives/register w_text": "Invalid archive 'w_text.war': it is neither a zip file (.mar) nor a gzipped "
    "tar file (.tar.gz).",
}


def _bad_dag(message: str) -> Callable[[Response], Response]:
    return error(400, "InvalidDAGException", message)


def _bad_workflow(message: str) -> Callable[[Response], Response]:
    return error(400, "InvalidWorkflowException", message)


def _workflow_registered(name: str) -> Callable[[Response], Response]:
    return description(f"Workflow {name} has been registered and scaled successfully.")


def _workflow_unregistered(name: str) -> Callable[[Response], Response]:
    return description(f'Workflow "{name}" unregistered')


def _usual_delay(torchserves: int) -> Callable[[Response], Response]:
    return replaced(f'"maxBatchDelay": {torchserves}', '"maxBatchDelay": 100')


ANSWERS: Final[dict[str, Mapping[str, Callable[[Response], Response]]]] = {
    "loader": _loaded(),
    "envelopes": _enveloped(),
    "compact": dict.fromkeys(
        (
            *(f"envelope_json/{name} by protocol" for name in ("instances", "base64", "base64 columns")),
            *(f"envelope_kserve/{name} by protocol" for name in ("instances", "as octets", "three")),
            "envelope_kserve/explain",
        ),
        _compact,
    ),
    "explanations": {
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
    "json-numbers": {
        "networks/predict base_built_in": success(pretty([[5.5, 10.5]])[:-1]),
        "networks/nonsense for base_built_in": bad_request(
            "the input is not JSON: numbers or lists of numbers are needed"
        ),
    },
    "vocabulary": {"builtin/a text": success(pretty({"zero": 0.63535, "one": 0.36464})[:-1])},
    "error-metric": {
        "measured/error, shown": replaced('Error{Level="Error"', 'Error{ModelName="measures",Level="Error"')
    },
    "header-case": {"facts/header in lower case": success(b"yes", None)},
    "sequence-headers": {
        "stateful/first of a": _sequence("a", starts=True),
        "stateful/second of a": _sequence("a"),
        "stateful/third of a": _sequence("a"),
        "stateful/first of b, without start": _sequence("b", starts=True),
        "stateful/second of b": _sequence("b"),
        "stateful/without id": _sequence("ts-seq-<uuid>", starts=True),
    },
    "too-large": {"routes/too large": _large_body},
    "generators": {
        "outputs/generator": lambda answer: success(b"01")(answer).but(
            headers={"transfer-encoding": "chunked"}
        )
    },
    "error-200": {
        "failures/code 200": lambda answer: answer.but(
            body=pretty({"code": 200, "type": "InternalServerException", "message": "told code 200"}),
            headers={"content-type": "application/json"},
        )
    },
    "isolation": {f"batches/one raises {place}": success(b"served", None) for place in (1, 3)},
    "pictures": {
        "pictures/no picture": bad_request("the 10 bytes are not a picture in a format that can be read"),
        "pictures/nothing": bad_request(
            "no picture: 'data', 'body' and 'b64' are missing or empty (fields sent: 'body')"
        ),
        "pictures/cut off": bad_request("the picture is damaged: image file is truncated"),
        "pictures/grey": success(_GREY),
    },
    "json": {
        "inputs/json with bom": replaced(
            '"bytearray",\n      "\\u00ef\\u00bb\\u00bf{}"', '"dict",\n      {}'
        ),
        "inputs/json utf-16": replaced(_UTF_16, '"dict",\n      {\n        "a": 1\n      }'),
    },
    "describe-header": {
        "inputs/headers that are the server's": replaced('"describe": "True"', '"describe": null')
    },
    "form-fields": {
        "inputs/form blank": _form_blank,
        "inputs/form of curl -d": replaced(
            '"keys": [],\n  "values": {},',
            '"keys": [\n    "{\\"a\\": 1}"\n  ],\n'
            '  "values": {\n    "{\\"a\\": 1}": [\n      "bytearray",\n      ""\n'
            "    ]\n  },",
        ),
    },
    "explain-header": {
        f"inputs/{name}": replaced(
            '"explain": null,\n    "url_path": null', '"explain": "False",\n    "url_path": ""'
        )
        for name in ("invocations", "invoke", "legacy", "legacy with version", "invocations by form")
    },
    "v1-instances": {
        "inputs/v1 instances": success(_predictions(_instance("body", "int", 1), _instance("a", "int", 2))),
        "inputs/v1 one instance": success(_predictions(_instance("body", "str", "x"))),
        "pictures/v1 base64": success(_predictions(_RED, _RED)),
    },
    "v2": {"routes/inference POST /v2/models/plain/versions/1.0/infer": _bad_v1(_CUT_SHORT)},
    "strict-bodies": _strict_bodies(),
    "urls": {
        "registration/file url absent": error(
            404,
            "ModelNotFoundException",
            "Given URL file:///nowhere/plain.mar does not match any allowed URL(s): "
            "file:// needs an allowed_urls in the configuration",
        ),
        "registration/other scheme": error(
            404,
            "ModelNotFoundException",
            "Given URL s3://bucket/absent.mar does not match any allowed URL(s): "
            "s3:// needs an allowed_urls in the configuration",
        ),
        "registration/refused host": error(
            409, "ConflictStatusException", "Model file already exists plain.mar"
        ),
    },
    "numbers": {
        "registration/describe values: zero": replaced('"batchSize": 0', '"batchSize": 1'),
        "registration/values: negative": bad_request("batch_size=-5: a whole number of at least 1 is needed"),
        "registration/describe values: negative": missing_model("plain"),
        "registration/unregister values: negative": missing_model("plain"),
        "registration/describe body: json without delay": replaced(
            '"maxBatchDelay": -10000', '"maxBatchDelay": 100'
        ),
        "scaling/scale min negative": bad_request("min_worker=-1: a whole number of at least 0 is needed"),
    },
    "json-registration": {
        "registration/body: json broken": bad_request(
            "The body is not valid JSON: Expecting value: line 1 column 9 (char 8)"
        ),
        "registration/body: json empty": bad_request(
            "The body is not valid JSON: Expecting value: line 1 column 1 (char 0)"
        ),
        "registration/body: json list": bad_request("The body must be a JSON object of parameters."),
    },
    "archives": {
        "layouts/register a zip": registered("plain"),
        "layouts/unregister a zip": unregistered("plain"),
        "layouts/register a flat tar": registered("flat"),
        "layouts/unregister a flat tar": unregistered("flat"),
    },
    "null-fields": {
        "manifests/register m_null_fields": registered("m_null_fields", 1),
        "manifests/predict m_null_fields": success(b"fine", None),
        "manifests/unregister m_null_fields": unregistered("m_null_fields"),
    },
    "checked-archives": _checked_archives(),
    "empty-configuration": _empty_configurations(),
    "timeouts": {
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
    "parallel-type": {"configurations/describe parallel_type": replaced('Type": "",', 'Type": "pp",')},
    "workflow-errors": {
        **{f"workflow_specifications/register {name}": _bad_dag(why) for name, why in _BAD_DAGS.items()},
        **{f"workflow_{name}": _bad_workflow(why) for name, why in _BAD_WORKFLOWS.items()},
        "workflow_archives/unregister w_outer_handler": error(
            404, "WorkflowNotFoundException", "Workflow not found: w_outer_handler"
        ),
        "workflow_management/register a file url": error(
            404,
            "WorkflowNotFoundException",
            "Given URL file:///w_chain.war does not match any allowed URL(s): file:// needs an "
            "allowed_urls in the configuration",
        ),
    },
    "workflow-accepted": {
        "workflow_archives/register w_bare": _workflow_registered("w_bare"),
        "workflow_archives/unregister w_bare": _workflow_unregistered("w_bare"),
        "workflow_management/register with json": _workflow_registered("of_json"),
        "workflow_management/unregister of_json": _workflow_unregistered("of_json"),
    },
    "workflow-ends": {
        "workflow_graphs/ask w_ends": success(
            b'{\n  "left": "left of hello",\n  "right": {\n    "right of": "hello"\n  }\n}'
        )
    },
    "workflow-nodes": {
        "workflow_graphs/describe the model of w_spare_model": _usual_delay(50),
        "workflow_graphs/describe the model of w_globals_last": lambda answer: replaced(
            '"batchSize": 1', '"batchSize": 3'
        )(replaced('"maxWorkers": 1', '"maxWorkers": 2')(answer)),
        "workflow_management/describe a model": _usual_delay(50),
    },
    "workflow-functions": {
        "workflow_management/list models": lambda answer: answer.but(
            body=pretty(
                {
                    "models": sorted(
                        [
                            *json.loads(answer.body or b"")["models"],
                            *(
                                {"modelName": f"{flow}__{name}", "modelUrl": f"{flow}.war"}
                                for flow, name in (
                                    ("w_chain", "first"),
                                    ("w_chain", "join"),
                                    ("w_told", "told"),
                                )
                            ),
                        ],
                        key=lambda model: str(model["modelName"]),
                    )
                }
            )
        ),
        "workflow_management/describe a function": lambda answer: replaced(
            '"runtime"', '"modelUrl": "w_chain.war",\n    "runtime"'
        )(_usual_delay(0)(answer)),
    },
    "workflow-models-gone": {
        "workflow_failures/ask without its model": error(
            500, "InternalServerException", "Error executing model"
        ),
        "workflow_failures/unregister without its model": _workflow_unregistered("w_told"),
        "workflow_failures/ask without workers": error(
            503,
            "ServiceUnavailableException",
            'Error executing model: Model "w_told__model" has no worker to serve inference request. '
            "Please use scale workers API to add workers. If this is a sequence inference, please check "
            "if it is closed, or expired; or exceeds maxSequenceJobQueueSize",
        ),
    },
    "workflow-options": {"workflow_management/ask for options": _not_allowed},
    "workflow-headers": {
        "workflow_management/ask another": plain_headers,
        "workflow_management/ask with a header after a model": plain_headers,
        "workflow_graphs/ask w_pipeline": partial(plain_headers, quotes=IN_TEXT),
    },
    "set-default": {
        **dict.fromkeys(
            ("routes/management GET /models/plain/1.0/set-default", "routes/delete set-default"), _not_allowed
        ),
        "routes/unregister": unregistered("plain"),
    },
    "v1-alive": {"routes/inference GET /": success(b'{"status":"alive"}')},
    "v1-methods": {"routes/inference POST /v1/models/plain:other": _not_allowed},
}
"""By the names of the rules, of single calls, named ``chapter/call``: what makes of their answer ours."""


def expected_of(chapter: Chapter, call: Probe, torchserves: Response) -> tuple[Response, list[Rule]]:
    """What modelserver is expected to answer, and the rules that make it differ."""
    answer, used = torchserves, []
    for rule in RULES:
        changed = _changed(rule, f"{chapter.name}/{call.name}", call, answer)
        if changed != answer:
            answer = changed
            used.append(rule)
    return answer, used


def _changed(rule: Rule, name: str, call: Probe, answer: Response) -> Response:
    """What is expected before any answer of ours is seen."""
    if (single := ANSWERS.get(rule.name, {}).get(name)) is not None:
        return single(answer)
    return _json_type(call, answer) if rule.name == "content-type" else rule.change(call, answer, answer)


def all_singles() -> dict[str, Callable[[Response], Response]]:
    """What is expected of single calls, by their names."""
    return {name: change for answers in ANSWERS.values() for name, change in answers.items()}
