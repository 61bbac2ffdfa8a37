"""Where modelserver answers otherwise than TorchServe 0.12.0, and why: the whole list.

A rule takes over into TorchServe's answer what it explains, from the request and both answers alone; what is
left is not explained. The migration guide prints this list, and the tests hold it against recorded answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from modelserver.migrating.changes import CHANGES
from modelserver.migrating.comparison import mismatches, without_additions

if TYPE_CHECKING:
    from modelserver.migrating.calls import Answer, Call

BETTER, OTHER, MISSING = "better", "other", "not yet"


@dataclass(frozen=True, slots=True)
class Rule:
    """One difference.

    ``why`` is a sentence for the migration guide; ``verdict`` says whether ours is better, other, or not
    there yet.
    """

    name: str
    verdict: str
    why: str

    def change(self, call: Call, theirs: Answer, ours: Answer) -> Answer:
        """Their answer with what the rule explains as it is in ours; both are masked."""
        return CHANGES[self.name](call, theirs, ours)


def explain(call: Call, theirs: Answer, ours: Answer) -> list[tuple[Rule, ...]]:
    """The fewest rules that together explain everything that is not the same; several if each would do.

    Both answers are masked. Empty if no rules do.
    """
    ours = ours.but(body=without_additions(ours.body or b""))
    able = [rule for rule in (*RULES, *OF_THE_RUN) if rule.change(call, theirs, ours) != theirs]
    for size in range(1, len(able) + 1):
        found = [rules for rules in combinations(able, size) if _suffice(rules, call, theirs, ours)]
        if found:
            return found
    return []


def _suffice(rules: tuple[Rule, ...], call: Call, theirs: Answer, ours: Answer) -> bool:
    answer = theirs
    for rule in rules:
        answer = rule.change(call, answer, ours)
    return not mismatches(answer, ours)


RULES: tuple[Rule, ...] = (
    Rule(
        "phrase",
        OTHER,
        "The status line of a prediction has its standard phrase (`200 OK`), which TorchServe leaves out "
        "or makes up.",
    ),
    Rule(
        "content-type",
        BETTER,
        "What the server itself converts to JSON is sent as `application/json`; TorchServe sends no "
        "content type.",
    ),
    Rule(
        "v1-error",
        OTHER,
        "Errors on V1 and V2 routes, and for unknown paths and methods, have `error` besides TorchServe's "
        "fields, for KServe's clients, and a handler's exception is 500 there, as in KServe.",
    ),
    Rule(
        "cause",
        BETTER,
        "When workers fail to start, TorchServe's message is followed by the cause and the last lines of "
        "output.",
    ),
    Rule(
        "openapi",
        OTHER,
        "The OpenAPI documents are modelserver's own.",
    ),
    Rule(
        "metrics",
        OTHER,
        "`/metrics` is filled by default: `metrics_mode` is `prometheus`.",
    ),
    Rule(
        "labels",
        OTHER,
        "The labels of a sample in `/metrics` have no comma behind the last one (they have under the "
        "compat defaults).",
    ),
    Rule(
        "loader",
        BETTER,
        "A class may be named (`file:Class`), lack `initialize`, and share its file with helper classes; "
        "TorchServe's worker does not start then.",
    ),
    Rule(
        "envelopes",
        BETTER,
        "With an envelope, a body without instances or inputs is a 400 with the reason; `json` takes "
        "bodies without a content type, and an empty list.",
    ),
    Rule(
        "compact",
        OTHER,
        "On V1 routes `predictions` and `explanations` are JSON without white space, of type "
        "`application/json`, under every envelope.",
    ),
    Rule(
        "explanations",
        BETTER,
        "A handler that cannot explain says so (501); the class to explain is a number, also from a form.",
    ),
    Rule(
        "json-numbers",
        BETTER,
        "`base_handler` takes numbers in JSON, and says what is wrong with anything else (400).",
    ),
    Rule(
        "vocabulary",
        BETTER,
        "A text handler's vocabulary may be a mapping of words to numbers; TorchServe needs torchtext's.",
    ),
    Rule(
        "error-metric",
        BETTER,
        "The series of `add_error` has its model's name too.",
    ),
    Rule(
        "header-case",
        BETTER,
        "A handler finds a request header by its name in upper or lower case, as in HTTP.",
    ),
    Rule(
        "sequence-headers",
        BETTER,
        "The answers of a sequence name it, and say when it began: a client learns the id that it was given.",
    ),
    Rule(
        "too-large",
        BETTER,
        "413 has a JSON body and a request id; TorchServe closes without either.",
    ),
    Rule(
        "stream-flag",
        OTHER,
        "The header `ts_stream_next`, a flag between TorchServe's own processes, is not sent to clients.",
    ),
    Rule(
        "generators",
        BETTER,
        "A generator that a handler returns for a request is streamed, part by part.",
    ),
    Rule(
        "error-200",
        OTHER,
        "A `PredictionException` with the code 200 is answered like any other code, not with the word "
        "`error`.",
    ),
    Rule(
        "isolation",
        BETTER,
        "A failing request fails alone: the others in its batch are answered.",
    ),
    Rule(
        "pictures",
        BETTER,
        "A picture that cannot be read is the client's fault: 400 with the reason, for its own request "
        "only. Grey pictures are converted.",
    ),
    Rule(
        "json",
        BETTER,
        "A JSON body in UTF-16 or with a byte order mark is parsed too.",
    ),
    Rule(
        "describe-header",
        BETTER,
        "A client cannot set the header `describe`, with which the server asks a handler to describe itself.",
    ),
    Rule(
        "form-fields",
        BETTER,
        "A field of an urlencoded body without `=` is kept with an empty value; the whole of a JSON text "
        "sent with `curl -d` is its key.",
    ),
    Rule(
        "explain-header",
        OTHER,
        "The request headers `explain` and `url_path` are there for handlers on every route, not on some "
        "only.",
    ),
    Rule(
        "v1-instances",
        BETTER,
        "A V1 body with a list of `instances` is split for every handler: each is a row of a batch, and "
        'the answer is `{"predictions": …}` (`split_instances=false` passes bodies through).',
    ),
    Rule(
        "v2",
        BETTER,
        "V2 routes are those of the Open Inference Protocol: bodies of tensors are split into rows, a "
        "version may be named.",
    ),
    Rule(
        "strict-bodies",
        OTHER,
        "On V1 and V2 routes a body that does not follow the protocol is 400 for every model; "
        "`split_instances=false`, and `compat_defaults=torchserve`, pass it to the handler as TorchServe "
        "does.",
    ),
    Rule(
        "urls",
        OTHER,
        "`file://` is only for URLs in the operator's `allowed_urls` (404 otherwise); a download whose "
        "name is taken is a conflict (409, not 500).",
    ),
    Rule(
        "numbers",
        BETTER,
        "Numbers that make no sense are refused or replaced by the nearest valid one; `max_batch_delay` "
        "missing from a JSON body is the default.",
    ),
    Rule(
        "json-registration",
        BETTER,
        "A JSON body of a registration that cannot be read is 400 with the reason, not 500.",
    ),
    Rule(
        "archives",
        BETTER,
        "Archives are told apart by content, not by suffix: a `.zip` and a tar without a top folder load "
        "too.",
    ),
    Rule(
        "null-fields",
        BETTER,
        "A manifest field that is `null` counts as not there; TorchServe's workers fail on it.",
    ),
    Rule(
        "checked-archives",
        BETTER,
        "What keeps an archive from ever being served is said when it is registered, with the reason and "
        "the archive's name: no handler, a missing or broken `model-config.yaml`, a manifest that cannot "
        "be read, no archive at all.",
    ),
    Rule(
        "empty-configuration",
        BETTER,
        "A `model-config.yaml` without content counts as none; TorchServe answers 500.",
    ),
    Rule(
        "timeouts",
        BETTER,
        "A timeout of the registration counts before all others, and one of `models=` where the archive's "
        "`model-config.yaml` sets none; with TorchServe the registration's is the last to count, and a "
        "`model-config.yaml` that sets none hides both.",
    ),
    Rule(
        "parallel-type",
        OTHER,
        "A `parallelType` without a `parallelLevel` is described as it is written; it has no effect on "
        "either server.",
    ),
    Rule(
        "workflow-errors",
        BETTER,
        "Archives and specifications of workflows that cannot be served are 400 and say what is "
        "wrong, where TorchServe often has an exception of Java and 500; an unknown function is "
        "refused before workers start. A `file://` URL needs an `allowed_urls`, as for models.",
    ),
    Rule(
        "workflow-accepted",
        BETTER,
        "A workflow of models alone needs no handler file, and one that is registered with a JSON "
        "body needs no timeouts in it; TorchServe refuses both.",
    ),
    Rule(
        "workflow-ends",
        BETTER,
        "Where several nodes of a workflow are its ends, answers that are not JSON become text of the "
        "object that joins them; TorchServe fails. Ours keeps the order of the specification.",
    ),
    Rule(
        "workflow-nodes",
        OTHER,
        "What a workflow's specification does not say of a model is up to the model's archive and the "
        "settings; common options count wherever they stand in it, and a model starts with "
        "`min-workers`. With TorchServe they count for the models below them, a model starts with "
        "`max-workers`, and waits 50 ms for batches.",
    ),
    Rule(
        "workflow-functions",
        OTHER,
        "The functions of workflows are listed and described as models, with the URL of their archive.",
    ),
    Rule(
        "workflow-models-gone",
        BETTER,
        "A workflow without one of its models names the node, or is 503 if the model has no workers; "
        "unregistering it works. TorchServe answers 500 with the model's name, and cannot unregister "
        "it.",
    ),
    Rule(
        "workflow-options",
        OTHER,
        "`OPTIONS` of a workflow is 405; TorchServe asks the workflow.",
    ),
    Rule(
        "workflow-headers",
        OTHER,
        "The first model of a workflow is told the headers `explain` and `url_path`, as other models are.",
    ),
    Rule(
        "set-default",
        BETTER,
        "`GET` and `DELETE` of `…/set-default` are 405; TorchServe describes the model, or "
        "**unregisters** it.",
    ),
    Rule(
        "v1-alive",
        BETTER,
        "`GET /` of the inference address says `alive`, as clients of KServe's V1 protocol ask; "
        "TorchServe refuses it with 405, as modelserver does with `compat_defaults=torchserve`.",
    ),
    Rule(
        "v1-methods",
        OTHER,
        "A V1 action that does not exist is 405 where the model's readiness may be asked, not 404.",
    ),
)
"""All differences between the two servers."""

OF_THE_RUN: tuple[Rule, ...] = (
    Rule(
        "startup",
        OTHER,
        "`loadedAtStartup` is true of versions that were loaded at the start; TorchServe's is true of all "
        "versions of a model that had one then, or that a snapshot restored.",
    ),
    Rule(
        "exposed",
        BETTER,
        "For clients on the same machine the message also names the exception, the line in the handler and "
        "what to do (`expose_errors=false` tells nobody).",
    ),
    Rule(
        "rounding",
        OTHER,
        "Floating point numbers differ in their last digits, by less than one in a thousand: another "
        "version of torch or another machine computes so.",
    ),
)
"""What the recorded comparison leaves out: it is of the start, a setting or the machine."""

VARIES = Rule("varies", OTHER, "TorchServe itself answers otherwise when it is asked the same again.")
"""No rule about one pair of answers: TorchServe is asked twice."""
