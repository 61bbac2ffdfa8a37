import importlib
import itertools
import json
import sys
from types import SimpleNamespace

import pytest

from modelserver.tools.archiver import BUILT_IN_HANDLERS, TORCHSERVE_HANDLERS
from modelserver_handlers import BUILT_IN
from modelserver_handlers.context import BatchState, Context
from modelserver_handlers.failures import explain_failure
from modelserver_handlers.loader import (
    HandlerExited,
    HandlerNotUsable,
    LoadedHandler,
    load_handler,
    read_config,
    read_manifest,
)

_numbers = itertools.count()


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("archive_"):
            del sys.modules[name]


@pytest.fixture
def write(model_dir):
    """Writes a handler module of a fresh name and returns the name."""

    def module(source):
        name = f"archive_{next(_numbers)}"
        (model_dir / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    return module


SHOUT = "def shout(text: str) -> str:\n    return text.upper()\n"
CLASS = """
class Echo:
    def initialize(self, context):
        self.context = context
    def handle(self, data, context):
        return [self.context, *data]
"""


@pytest.mark.parametrize("form", ["{}", "{}.py", "some/folder/{}.py", "{}:Echo", "{}.py:Echo", "{}:missing"])
def test_every_form_of_the_name_leads_to_the_class(form, model_dir, write):
    """With or without .py, a folder or the class's name, the module's one class handles (reference 12.2)."""
    loaded = load_handler(form.format(write(CLASS)), model_dir)

    loaded.initialize("context")
    assert loaded.entry([1], None) == ["context", 1]
    assert type(loaded.instance).__name__ == "Echo"
    assert not loaded.built_in


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", r"Expected only one class in custom service code or a function entry point \[\]"),
        (CLASS + CLASS.replace("Echo", "Second"), r"Expected only one class .* \['Echo', 'Second'\]"),
        ("class A:\n    pass\n", "Expect handle method in class A"),
        ("handle = 5\n", "Expected only one class"),
        (SHOUT + SHOUT.replace("shout", "whisper"), r"\(shout, whisper\): .* archive_\d+.py:shout"),
        (
            "class Iris:\n    def handel(self, data, context): ...\n" + SHOUT,
            r"Iris.*; handel looks like handle",
        ),
    ],
    ids=["nothing", "two handlers", "no handle method", "a number", "two functions", "misspelt method"],
)
def test_modules_without_a_clear_handler_are_not_usable(source, message, model_dir, write):
    """The messages are TorchServe's (F40), and name what could be meant."""
    with pytest.raises(HandlerNotUsable, match=message):
        load_handler(f"{write(source)}.py", model_dir)


@pytest.mark.parametrize("place", ["archive", "site"])
def test_missing_dependency_is_reported_as_itself(place, model_dir, write, tmp_path_factory, monkeypatch):
    """An import that fails inside a module, of the archive or installed, is not a missing handler (F40)."""
    if place == "site":
        site = tmp_path_factory.mktemp("site")
        monkeypatch.syspath_prepend(str(site))
        (site / "archive_installed.py").write_text("import archive_dependency\n")
    name = write("import archive_dependency\n") if place == "archive" else "archive_installed"
    importlib.invalidate_caches()

    with pytest.raises(ModuleNotFoundError) as caught:
        load_handler(name, model_dir)
    assert caught.value.name == "archive_dependency"


def test_faults_of_the_module_come_out_as_they_are(model_dir, write):
    """The caller gets a syntax error or exception at import, where TorchServe looks elsewhere (F40)."""
    with pytest.raises(SyntaxError):
        load_handler(write("def broken(:\n"), model_dir)
    with pytest.raises(ZeroDivisionError):
        load_handler(write("1 / 0\n"), model_dir)
    with pytest.raises(ImportError, match="cannot import name 'nothing_of_that_name' from 'json'"):
        load_handler(write("from json import nothing_of_that_name\n"), model_dir)


@pytest.mark.parametrize("handler", ["archive_nowhere", *TORCHSERVE_HANDLERS])
def test_unknown_modules_are_named_and_those_of_torchserve_alone_have_a_way_out(handler, model_dir):
    """A handler that is nowhere is reported by its name (F40)."""
    hint = "" if handler == "archive_nowhere" else " Instead of TorchServe's: "
    message = rf"'{handler}' is neither in the archive nor a built-in handler \(base_handler.*{hint}"
    with pytest.raises(HandlerNotUsable, match=message):
        load_handler(f"{handler}.py", model_dir)


def test_the_archiver_offers_the_handlers_that_load():
    assert set(BUILT_IN_HANDLERS) == BUILT_IN.keys()


@pytest.mark.parametrize(
    "form", ["ts.torch_handler.image_classifier", "image_classifier.py", "x/image_classifier"]
)
def test_built_in_handlers_have_other_names_too(form, model_dir):
    """By TorchServe's full name too, with a suffix or a folder (reference 12.2)."""
    loaded = load_handler(form, model_dir)

    assert loaded.built_in
    assert type(loaded.instance).__name__ == "ImageClassifier"


@pytest.mark.parametrize(
    ("source", "when", "place"),
    [
        ("import sys\n\nsys.exit(3)\n", "imported", "line 3, in <module>"),
        (
            "import sys\nclass A:\n    def __init__(self):\n        sys.exit(3)\n    handle = None\n",
            "created",
            "line 4, in __init__",
        ),
        (
            "import sys\nclass A:\n    def initialize(self, c):\n        sys.exit(3)\n    handle = None\n",
            "initialised",
            "line 4, in initialize",
        ),
        ("import sys\ndef handle(data, context):\n    sys.exit(3)\n", "initialised", "line 3, in handle"),
    ],
    ids=["import", "constructor", "initialize", "function"],
)
def test_exit_while_loading_is_a_failure_with_a_place(source, when, place, model_dir, write):
    """sys.exit in each place is reported with the step and the line, and does not end the process (F45)."""
    name = write(source)
    with pytest.raises(
        HandlerExited, match=rf"The handler called sys\.exit\(3\) while it was {when}"
    ) as caught:
        load_handler(name, model_dir).initialize(None)

    assert explain_failure(caught.value, model_dir).endswith(f"({name}.py, {place})")


def test_module_of_the_archive_wins_over_a_built_in_handler(model_dir, monkeypatch):
    monkeypatch.delitem(sys.modules, "image_classifier", raising=False)
    (model_dir / "image_classifier.py").write_text(CLASS)
    importlib.invalidate_caches()

    loaded = load_handler("image_classifier", model_dir)

    assert type(loaded.instance).__name__ == "Echo"
    assert not loaded.built_in
    monkeypatch.delitem(sys.modules, "image_classifier")


@pytest.mark.parametrize(("name", "place"), [("logging", r"/__init__\.py"), ("time", "built into Python")])
def test_name_of_a_module_that_comes_first_is_refused(name, place, model_dir):
    (model_dir / f"{name}.py").write_text(CLASS)

    with pytest.raises(HandlerNotUsable, match=rf"file {name}\.py has the name of .*{place}: rename it"):
        load_handler(f"{name}.py", model_dir)


def test_subclass_and_name_like_ours_are_not_built_in(model_dir, write):
    name = "modelserver_handlers_of_somebody"
    (model_dir / f"{name}.py").write_text(CLASS)
    importlib.invalidate_caches()

    assert not load_handler(name, model_dir).built_in
    del sys.modules[name]

    source = "from modelserver_handlers.base import BaseHandler\nclass Mine(BaseHandler):\n    pass\n"

    assert not load_handler(write(source), model_dir).built_in


def test_a_handler_file_outside_of_the_archive_is_loaded(model_dir, tmp_path_factory):
    place = tmp_path_factory.mktemp("outside")
    (place / "archive_outside.py").write_text(
        "from archive_neighbour import ANSWER\n\nclass Service:\n"
        "    def handle(self, data, context):\n        return [ANSWER]\n"
    )
    (place / "archive_neighbour.py").write_text("ANSWER = 42\n")
    (model_dir / "archive_outside.py").write_text("raise RuntimeError\n")
    before = list(sys.path)
    try:
        for name in ("archive_outside.py:handle", "archive_outside:handle"):
            assert load_handler(f"{place}/{name}", model_dir).entry([], None) == [42]
        with pytest.raises(HandlerNotUsable, match=rf"The handler file {place}/none\.py does not exist"):
            load_handler(f"{place}/none.py:handle", model_dir)
    finally:
        sys.path[:] = before


DATA_CLASS = "import dataclasses\n@dataclasses.dataclass\nclass Row:\n    text: str\n"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (SHOUT, ":shout"),
        (SHOUT, ""),
        (SHOUT + "def _clean(text: str) -> str: ...\ndef join(a: str, b: str) -> str: ...\n", ""),
        (DATA_CLASS + SHOUT, ""),
        (SHOUT.replace("shout", "predict") + SHOUT.replace("upper", "lower"), ""),
        (SHOUT.replace("shout", "handle"), ""),
        (CLASS + SHOUT, ":shout"),
    ],
)
def test_an_annotated_function_is_served(source, name, model_dir, write):
    loaded = load_handler(f"{write(source)}.py{name}", model_dir)

    loaded.initialize(Context("m", "/", None, 8, None, "0"))
    loaded.instance.context._ms_begin(BatchState(["1"], properties=[{}]))
    assert loaded.entry([{"body": "a"}], loaded.instance.context) == ["A"]
    assert not loaded.built_in


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (CLASS.replace("initialize", "initialise"), "Echo.initialise is never called: is it initialize"),
        (
            "import modelserver\nclass M(modelserver.Handler):\n def laod(self): ...\n predict = print\n",
            "M.laod is never called: is it load, misspelt?",
        ),
    ],
)
def test_methods_that_look_misspelt_are_warned_of(source, words, model_dir, write):
    context = Context("m", "/", None, 8, None, "0")

    load_handler(write(source), model_dir).initialize(context)

    assert words in "".join(context._ms_warnings)


OWN_INITIALIZE = """
import torch
from modelserver_handlers.base import BaseHandler
class Own(BaseHandler):
    def initialize(self, context):
        self.precision = torch.get_float32_matmul_precision()
    def handle(self, data, context):
        return [self.precision]
"""


@pytest.mark.parametrize(("gpu_id", "precision"), [(0, "high"), (None, "highest")])
def test_tf32_is_allowed_on_gpus_as_in_torchserve(gpu_id, precision, write, model_dir, monkeypatch):
    """A class derived from BaseHandler finds it so in its own ``initialize``, and CUDA has not started."""
    import torch

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    loaded = load_handler(write(OWN_INITIALIZE), model_dir)
    context = Context("m", "/", None, 8, gpu_id, "0")
    try:
        loaded.initialize(context)
    finally:
        torch.set_float32_matmul_precision("highest")

    assert loaded.entry([None], context) == [precision]
    assert not torch.cuda.is_initialized()


APPLICATION = "async def app(scope, receive, send): ...\n"
ROUTE = "def item(key: int): ...\n"
INSTANCE = "class App:\n    async def __call__(self, scope, receive, send): ...\napp = App()\n"
HANDLER = "class Mine:\n    def handle(self, data, context): return data\n"


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        (APPLICATION + ROUTE, "", "ApplicationModel"),
        (APPLICATION.replace("app", "api"), ":api", "ApplicationModel"),
        (INSTANCE, "", "ApplicationModel"),
        (APPLICATION + HANDLER, "", "Mine"),
        (APPLICATION + HANDLER, ":app", "ApplicationModel"),
        ("app = print\n" + HANDLER, "", "Mine"),
    ],
)
def test_an_application_is_served(source, name, expected, model_dir, write):
    loaded = load_handler(write(source) + name, model_dir)
    assert type(loaded.instance).__name__ == expected


def test_manifest_may_be_missing(tmp_path):
    assert read_manifest(tmp_path) is None
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "config"), [("a: {b: [1]}\n", {"a": {"b": [1]}}), ("", {}), ("- 1\n", {}), ("text", {})]
)
def test_config_is_a_mapping_or_empty(tmp_path, text, config):
    (tmp_path / "c.yaml").write_text(text)

    assert read_config(tmp_path, "c.yaml") == config
    assert read_config(tmp_path, "") == {}


def test_config_is_read_by_the_safe_loader(tmp_path):
    """A tag that would make an object is an error (F60)."""
    import yaml

    (tmp_path / "c.yaml").write_text("a: !!python/object/apply:os.getcwd []\n")

    with pytest.raises(yaml.YAMLError):
        read_config(tmp_path, "c.yaml")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cpu", "cpu"),
        ("cuda:1", "cuda:1"),
        (SimpleNamespace(type="cuda"), "namespace(type='cuda')"),
        (None, ""),
        ("upstairs", ""),
        (7, ""),
        (SimpleNamespace(type=int), ""),
    ],
)
def test_handlers_say_where_their_model_is(device, name):
    assert LoadedHandler(None, None, SimpleNamespace(device=device), built_in=False).device == name
    assert LoadedHandler(None, None, None, built_in=False).device == ""
