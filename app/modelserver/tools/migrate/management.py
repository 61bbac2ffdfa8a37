"""Where answers of the management API, of workflows and to other paths differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from modelserver.tools.migrate.changes import (
    BETTER,
    OTHER,
    Rule,
    Rules,
    described_at,
    good,
    message_of,
    parsed,
    registers,
)
from modelserver.tools.migrate.predictions import loader

if TYPE_CHECKING:
    from modelserver.tools.migrate.calls import Answer, Call

RULES = Rules()


@RULES.taking_over("urls", OTHER)
def _urls(call: Call, theirs: Answer, ours: Answer) -> bool:
    """`file://`, and `s3://`, `gs://`, `az://` and `hf://`, which TorchServe does not know, are only for
    URLs in the operator's `allowed_urls` (404 otherwise); a download whose name is taken is a conflict (409,
    not 500).
    """
    said = message_of(ours)
    taken = said == message_of(theirs) and said.startswith("Model file already exists")
    refused = ours.status == 404 and "needs an allowed_urls" in said
    return registers(call) and ((taken and ours.status == 409) or refused)


@RULES.changing("numbers", BETTER)
def _numbers(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """Numbers that make no sense are refused or replaced by the nearest valid one; `max_batch_delay`
    missing from a JSON body is the default.
    """
    refused = ours.status == 400 and re.match(r"\w+=\S+: a whole number of at least \d", message_of(ours))
    if refused and call.method in {"POST", "PUT"}:
        return ours
    odd = re.search(rb'"batchSize": (0|-\d+)|"maxBatchDelay": -\d', theirs.body or b"")
    return described_at("batchSize", "maxBatchDelay")(call, theirs, ours) if odd else theirs


@RULES.taking_over("json-registration", BETTER)
def _json_registration(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A JSON body of a registration that cannot be read is 400 with the reason, not 500."""
    unreadable = message_of(ours).startswith(("The body is not valid JSON", "The body must be a JSON object"))
    return registers(call) and theirs.status == 500 and ours.status == 400 and unreadable


@RULES.taking_over("archives", BETTER)
def _archives(call: Call, theirs: Answer, ours: Answer) -> bool:
    """Archives are told apart by content, not by suffix: a `.zip` and a tar without a top folder load
    too.
    """
    unread = message_of(theirs).startswith(("Failed to save model: ", "Model name is not defined."))
    return registers(call) and unread and good(ours)


RULES.append(
    Rule(
        "null-fields",
        BETTER,
        "A manifest field that is `null` counts as not there; TorchServe's workers fail on it.",
        loader.change,
    )
)


@RULES.taking_over("checked-archives", BETTER)
def _checked_archives(call: Call, _theirs: Answer, ours: Answer) -> bool:
    """What keeps an archive from ever being served is said when it is registered, with the reason and the
    archive's name: no handler, a missing or broken `model-config.yaml`, a manifest that cannot be
    read, no archive at all.
    """
    said = parsed(ours.body)
    if not isinstance(said, dict):
        return False
    return registers(call) and ours.status == 400 and bool(said.get("type") == "InvalidModelException")


@RULES.taking_over("empty-configuration", BETTER)
def _empty_configuration(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A `model-config.yaml` without content counts as none; TorchServe answers 500."""
    return registers(call) and good(ours) and '"yamlMap" is null' in message_of(theirs)


RULES.append(
    Rule(
        "timeouts",
        BETTER,
        "A timeout of the registration counts before all others, and one of `models=` where the archive's "
        "`model-config.yaml` sets none; with TorchServe the registration's is the last to count, and a "
        "`model-config.yaml` that sets none hides both.",
        described_at("responseTimeout", "startupTimeout"),
    )
)


@RULES.changing("parallel-type", OTHER)
def _parallel_type(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """A `parallelType` without a `parallelLevel` is described as it is written; it has no effect on
    either server.
    """
    unset = b'"parallelType": ""' in (theirs.body or b"")
    return described_at("parallelType")(call, theirs, ours) if unset else theirs


@RULES.taking_over("workflow-errors", BETTER)
def _workflow_errors(call: Call, theirs: Answer, ours: Answer) -> bool:
    """Archives and specifications of workflows that cannot be served are 400 and say what is wrong, where
    TorchServe often has an exception of Java and 500; an unknown function is refused before workers
    start. A `file://` URL needs an `allowed_urls`, as for models.
    """
    said = parsed(ours.body)
    kind = said.get("type", "") if isinstance(said, dict) else ""
    refused = kind in {"InvalidWorkflowException", "InvalidDAGException", "WorkflowNotFoundException"}
    return call.path.startswith("/workflows") and refused and theirs.status != 404


@RULES.taking_over("workflow-accepted", BETTER)
def _workflow_accepted(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A workflow of models alone needs no handler file, and one that is registered with a JSON body needs
    no timeouts in it; TorchServe refuses both.
    """
    return call.path.startswith("/workflows") and theirs.status in {404, 500} and good(ours)


@RULES.taking_over("workflow-ends", BETTER)
def _workflow_ends(call: Call, theirs: Answer, ours: Answer) -> bool:
    """Where several nodes of a workflow are its ends, answers that are not JSON become text of the object
    that joins them; TorchServe fails. Ours keeps the order of the specification.
    """
    return call.path.startswith("/wfpredict/") and "JsonReader" in message_of(theirs) and good(ours)


@RULES.changing("workflow-nodes", OTHER)
def _workflow_nodes(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """What a workflow's specification does not say of a model is up to the model's archive and the
    settings; common options count wherever they stand in it, and a model starts with `min-workers`.
    With TorchServe they count for the models below them, a model starts with `max-workers`, and waits
    50 ms for batches.
    """
    of_node = call.path.startswith("/models/") and "__" in call.path
    differ = described_at("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
    return differ(call, theirs, ours) if of_node else theirs


@RULES.taking_over("workflow-functions", OTHER)
def _workflow_functions(call: Call, _theirs: Answer, ours: Answer) -> bool:
    """The functions of workflows are listed and described as models, with the URL of their archive."""
    return call.method == "GET" and call.path.startswith("/models") and b'.war"' in (ours.body or b"")


@RULES.taking_over("workflow-models-gone", BETTER)
def _workflow_models_gone(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A workflow without one of its models names the node, or is 503 if the model has no workers;
    unregistering it works. TorchServe answers 500 with the model's name, and cannot unregister it.
    """
    if call.path.startswith("/workflows/"):
        return message_of(theirs).startswith("Error while unregistering the workflow")
    return call.path.startswith("/wfpredict/") and message_of(ours).startswith("Error executing ")


@RULES.taking_over("workflow-options", OTHER)
def _workflow_options(call: Call, _theirs: Answer, ours: Answer) -> bool:
    """`OPTIONS` of a workflow is 405; TorchServe asks the workflow."""
    return call.method == "OPTIONS" and call.path.startswith("/wfpredict/") and ours.status == 405


@RULES.changing("workflow-headers", OTHER)
def _workflow_headers(call: Call, theirs: Answer, ours: Answer) -> Answer:
    """The first model of a workflow receives the headers `explain` and `url_path`, as other models do."""
    if call.path.startswith("/wfpredict/"):
        # The models after it are not told them: their answers tell of the first one's in text.
        for told in (plain_headers(theirs), plain_headers(theirs, IN_TEXT)):
            if told.body == ours.body:
                return told
    return theirs


@RULES.taking_over("set-default", BETTER)
def _set_default(call: Call, _theirs: Answer, ours: Answer) -> bool:
    """`GET` and `DELETE` of `…/set-default` are 405; TorchServe describes the model, or **unregisters**
    it.
    """
    asked = call.method in {"GET", "DELETE"} and call.path.endswith("/set-default")
    return asked and ours.status == 405


@RULES.taking_over("v1-alive", BETTER)
def _v1_alive(call: Call, theirs: Answer, ours: Answer) -> bool:
    """`GET /` of the inference address says `alive`, as clients of KServe's V1 protocol ask; TorchServe
    refuses it with 405, as modelserver does with `compat_defaults=torchserve`.
    """
    alive = (call.method, call.path) == ("GET", "/") and parsed(ours.body) == {"status": "alive"}
    return alive and theirs.status == 405


@RULES.taking_over("v1-methods", OTHER)
def _v1_methods(call: Call, theirs: Answer, ours: Answer) -> bool:
    """A V1 action that does not exist is 405 where the model's readiness may be asked, not 404."""
    return call.path.startswith("/v1/models/") and (theirs.status, ours.status) == (404, 405)


IN_TEXT = (b'\\"',)
"""The quotes of JSON that is text in JSON."""


def plain_headers(answer: Answer, quotes: tuple[bytes, ...] = (b'"', *IN_TEXT)) -> Answer:
    """With the headers of an ordinary prediction in the JSON of an answer, and in JSON that is text there."""
    body = answer.body or b""
    for quote in quotes:
        for name, value in ((b"explain", b"False"), (b"url_path", b"")):
            key = quote + name + quote + b": "
            body = body.replace(key + b"null", key + quote + value + quote)
    return answer.but(body=body)
