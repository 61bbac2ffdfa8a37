"""What both servers are asked about workflows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from tests.differential.calls import Call, Step, Together, get, post, unregister

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT: Final = "text/plain"
JSON: Final = "application/json"
_FORM: Final = (
    "--XyZ\r\n"
    'Content-Disposition: form-data; name="data"; filename="a.txt"\r\n'
    "Content-Type: text/plain\r\n\r\nof a form\r\n"
    '--XyZ\r\nContent-Disposition: form-data; name="other"\r\n\r\nmore\r\n--XyZ--\r\n'
)


def enter(name: str, url: str, **parameters: object) -> Call:
    """Registers a workflow."""
    return Call(name, "management", "POST", f"/workflows?{urlencode({'url': url, **parameters})}")


def leave(name: str, workflow: str) -> Call:
    """Unregisters it."""
    return Call(name, "management", "DELETE", f"/workflows/{workflow}")


def ask(name: str, workflow: str, body: bytes | str = b"", **headers: str) -> Call:
    """A request to a workflow."""
    return post(name, f"/wfpredict/{workflow}", body, **headers)


def management() -> Iterator[Step]:
    """Registering, describing, asking and unregistering."""
    yield Call("register without a url", "management", "POST", "/workflows")
    yield Call("register with a name only", "management", "POST", "/workflows?workflow_name=w")
    yield enter("register an empty url", "")
    yield enter("register what is absent", "absent.war")
    yield enter("register from above", "../w_chain.war")
    yield enter("register a file url", "file:///w_chain.war")
    yield enter("register a model", "tells.mar")
    yield enter("register", "w_chain.war")
    yield enter("register again", "w_chain.war")
    yield enter("register with another name", "w_only_model.war", workflow_name="other")
    yield enter("register with an empty name", "w_only_model.war", workflow_name="")
    body = json.dumps({"url": "w_context.war", "workflow_name": "of_json"}).encode()
    yield Call(
        "register with json",
        "management",
        "POST",
        "/workflows",
        (("Content-Type", "application/json"),),
        body,
    )
    yield leave("unregister of_json", "of_json")
    yield enter("register with more", "w_told.war", response_timeout=5, synchronous="false", more=1)
    yield get("list", "management", "/workflows")
    yield get("list two", "management", "/workflows?limit=2")
    yield get("list the rest", "management", "/workflows?limit=2&next_page_token=2")
    yield get("list too far", "management", "/workflows?limit=2&next_page_token=99")
    yield get("describe", "management", "/workflows/w_chain")
    yield get("describe another", "management", "/workflows/other")
    yield get("describe with more", "management", "/workflows/w_chain/1.0")
    yield get("list models", "management", "/models")
    yield get("describe a model", "management", "/models/w_chain__model")
    yield get("describe a function", "management", "/models/w_chain__first")
    yield post("ask a node", "/predictions/w_chain__model", "direct", content_type=TEXT)
    yield post("ask a function", "/predictions/w_chain__first", "direct", content_type=TEXT)
    yield ask("ask text", "w_chain", "hello", content_type=TEXT)
    yield ask("ask bytes", "w_chain", b"\x00\xff")
    yield ask("ask json", "w_chain", '{"a": 1}', content_type=JSON)
    yield ask("ask a form", "w_chain", _FORM, content_type="multipart/form-data; boundary=XyZ")
    yield ask("ask nothing", "w_chain")
    yield Call("ask with PUT", "inference", "PUT", "/wfpredict/w_chain", body=b"put")
    yield Call("ask for options", "inference", "OPTIONS", "/wfpredict/w_chain")
    yield post("ask with a query", "/wfpredict/w_chain?a=1", "queried", content_type=TEXT)
    yield post("ask with more", "/wfpredict/w_chain/1.0", "more", content_type=TEXT)
    yield post("ask in capitals", "/WFPREDICT/w_chain", "loud", content_type=TEXT)
    yield ask("ask another", "other", "hello", content_type=TEXT)
    asked = ask("ask with a header after a model", "w_told", "hello", content_type=TEXT)
    yield replace(asked, headers=(*asked.headers, ("X-Asked", "yes")))
    yield ask("ask a model", "tells", "hello", content_type=TEXT)
    yield post("ask a workflow as a model", "/predictions/w_chain", "hello", content_type=TEXT)
    yield leave("unregister", "w_chain")
    yield leave("unregister again", "w_chain")
    yield Call("unregister with more", "management", "DELETE", "/workflows/other/1.0")
    yield ask("ask what is unregistered", "w_chain", "hello")
    yield get("describe what is unregistered", "management", "/workflows/w_chain")
    yield get("describe a model of it", "management", "/models/w_chain__model")
    for name in ("w_only_model", "w_told"):
        yield leave(f"unregister {name}", name)
    yield get("list models at the end", "management", "/models")


def graphs() -> Iterator[Step]:
    """What nodes are given, and options of their models."""
    for name in ("w_diamond", "w_ends", "w_pipeline", "w_two_models"):
        yield enter(f"register {name}", f"{name}.war")
        yield get(f"describe {name}", "management", f"/workflows/{name}")
        yield ask(f"ask {name}", name, "hello", content_type=TEXT)
        yield leave(f"unregister {name}", name)
    for name in ("w_spare_model", "w_all_keys", "w_globals_last"):
        yield enter(f"register {name}", f"{name}.war")
        yield get(f"describe {name}", "management", f"/workflows/{name}")
        if name != "w_all_keys":  # where TorchServe starts as many workers as there may be at most
            yield get(f"describe the model of {name}", "management", f"/models/{name}__model")
        yield leave(f"unregister {name}", name)
    yield enter("register w_batch", "w_batch.war")
    yield Together(tuple(ask(f"ask w_batch {number}", "w_batch", "0.0") for number in range(3)))
    yield leave("unregister w_batch", "w_batch")


def failures() -> Iterator[Step]:
    """Nodes that fail, and models that are gone."""
    yield enter("register w_fails", "w_fails.war")
    for what in ("value", "code 422", "cuda", "exit"):
        yield ask(f"fail with {what}", "w_fails", what, content_type=TEXT)
    yield ask("do not fail", "w_fails", "nothing", content_type=TEXT)
    yield leave("unregister w_fails", "w_fails")
    for name in ("w_branch_fails", "w_second_time", "w_nothing"):
        yield enter(f"register {name}", f"{name}.war")
        yield ask(f"ask {name}", name, "hello", content_type=TEXT)
        yield leave(f"unregister {name}", name)
    yield enter("register w_sleeper", "w_sleeper.war")
    yield ask("sleep for long", "w_sleeper", "1.0", content_type=TEXT)
    yield leave("unregister w_sleeper", "w_sleeper")
    yield enter("register w_told for a model to go", "w_told.war")
    yield unregister("unregister its model", "w_told__model")
    yield ask("ask without its model", "w_told", "hello", content_type=TEXT)
    yield get("describe without its model", "management", "/workflows/w_told")
    yield leave("unregister without its model", "w_told")
    yield enter("register w_told for no workers", "w_told.war")
    yield Call("scale to 0", "management", "PUT", "/models/w_told__model?min_worker=0&synchronous=true")
    yield ask("ask without workers", "w_told", "hello", content_type=TEXT)
    yield leave("unregister without workers", "w_told")


def values() -> Iterator[Step]:
    """What nodes pass on, and end with."""
    yield enter("register w_types", "w_types.war")
    yield enter("register w_last_types", "w_last_types.war")
    for value in (
        *("text", "empty text", "unicode", "bytes", "bytearray", "empty bytes", "dict", "list", "int"),
        *("float", "nan", "true", "none", "numpy array", "set"),
    ):
        yield ask(f"pass on {value}", "w_types", value, content_type=TEXT)
        yield ask(f"end with {value}", "w_last_types", value, content_type=TEXT)
    yield leave("unregister w_types", "w_types")
    yield leave("unregister w_last_types", "w_last_types")
    yield enter("register w_responds", "w_responds.war")
    for name, done in (
        ("404", [["set_response_status", 404, "Nobody"]]),
        ("201", [["set_response_status", 201]]),
        ("header", [["set_response_header", "X-Own", "yes"]]),
        ("type", [["set_response_content_type", "text/css"]]),
    ):
        body = json.dumps({"do": done})
        yield ask(f"end with {name}", "w_responds", body, content_type=JSON)
    yield leave("unregister w_responds", "w_responds")


def specifications() -> Iterator[Step]:
    """Specifications that are wrong, or seem to be."""
    for name in (
        *("w_cycle", "w_pair", "w_self", "w_starts", "w_apart", "w_absent_function", "w_absent_archive"),
        *("w_no_url", "w_no_dag", "w_empty_dag"),
        *("w_text_number", "w_text_node", "w_unknown_key", "w_bad_yaml", "w_tagged", "w_list"),
        *("w_models_list", "w_slash"),
    ):
        yield enter(f"register {name}", f"{name}.war")
        yield leave(f"unregister {name}", name)
    yield get("list workflows after the specifications", "management", "/workflows")
    yield get("list models after the specifications", "management", "/models")


def archives() -> Iterator[Step]:
    """Archives that are wrong, or seem to be."""
    for name in (
        *("w_no_name", "w_no_spec", "w_absent_spec", "w_outer_spec"),
        *("w_outer_handler", "w_slip", "w_no_manifest", "w_empty_manifest"),
        *("w_cut_manifest", "w_text", "w_bare"),
    ):
        yield enter(f"register {name}", f"{name}.war")
        yield leave(f"unregister {name}", name)
    yield get("list workflows after the archives", "management", "/workflows")
    yield get("list models after the archives", "management", "/models")


CHAPTERS: Final = {
    each.__name__: each for each in (graphs, failures, values, management, specifications, archives)
}
"""The chapters by name."""
