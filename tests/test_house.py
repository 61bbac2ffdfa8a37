"""The house as a whole: what is packaged, which room may import which, and that nothing goes undescribed."""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points, metadata, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import modelserver

pytestmark = pytest.mark.usefixtures("uncollected")

_ROOT = Path(__file__).parents[1]
_PACKAGES = {"modelserver": _ROOT / "app", "modelserver_handlers": _ROOT / "handlers"}
_TORCH = {"torch", "torchvision"}
_GRPC = {"grpc", "grpc_reflection"}

# From the bottom up: a room imports from those before it, and from itself.
_ROOMS = ("errors", "engine", "models", "surface", "extension", "run", "ext", "tools")
# The names that users import, on top of everything.
_PUBLIC = {"testing", "model_archiver", "modelserver", "__main__"}


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """One source file, parsed, and all nodes of it: several tests look at each."""

    name: str
    tree: ast.Module
    nodes: list[ast.AST]

    @property
    def room(self):
        """The folder or module directly under ``modelserver``, or the other package."""
        return room_of(self.name)

    def imports(self):
        """The modules that are imported anywhere in it, in functions and for types too."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name} imports relatively"
                assert node.module is not None
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def late_imports(self):
        """Those that are imported by name, when they are used: in calls, and in tables for such calls."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call) and _imports_by_name(node)]
        for call in calls:
            yield from _names_among(call.args)
        if not all(any(isinstance(each, ast.Constant) for each in call.args) for call in calls):
            for node in self.nodes:
                if isinstance(node, ast.Dict):
                    yield from _names_among(node.values)


def _imports_by_name(call):
    """Whether it calls ``import_module``, has a thread call it, or names the module of routes."""
    names = {getattr(part, "id", getattr(part, "attr", "")) for part in (call.func, *call.args)}
    return not names.isdisjoint(("import_module", "routes"))


def _names_among(nodes):
    """The texts that name a module of ours."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in module_names():
            yield node.value


def room_of(name):
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first == "modelserver" and rest else first


@cache
def modules():
    result = []
    for package, root in _PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            result.append(Module(name, tree, list(ast.walk(tree))))
    return result


@cache
def module_names():
    return {module.name for module in modules()}


@cache
def imported_modules(module):
    """The other modules of ours that a module imports, in functions, for types and by name too."""
    everything = (*module.imports(), *module.late_imports())
    return {name for name in everything if name in module_names()} - {module.name, "modelserver"}


def extension_of(name):
    """The extension that a module belongs to, empty if it belongs to none."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["ext"] and len(parts) > 2 else ""


def test_the_rooms_are_those_of_the_design():
    """The server's package has the rooms of docs/architecture.md, and nothing else."""
    assert {module.room for module in modules()} == {*_ROOMS, *_PUBLIC, "modelserver_handlers"}


def test_imports_go_down():
    """tools -> ext -> run -> surface -> models -> engine -> errors."""
    place = {room: index for index, room in enumerate(_ROOMS)}
    upwards = {}
    for module in modules():
        for name in imported_modules(module):
            if place.get(room_of(name), -1) > place.get(module.room, len(place)):
                upwards.setdefault(module.room, set()).add(name.removeprefix("modelserver."))

    assert upwards == {}


def test_extensions_do_not_import_each_other():
    """What two of them need is in the core."""
    pairs = {
        (extension_of(module.name), extension_of(name))
        for module in modules()
        for name in imported_modules(module)
        if extension_of(module.name)
    }

    assert {(a, b) for a, b in pairs if b and a != b} == set()


def test_the_server_does_not_import_torch():
    server = [module for module in modules() if module.room != "modelserver_handlers"]
    assert [m.name for m in server if {name.partition(".")[0] for name in m.imports()} & _TORCH] == []


def test_the_server_does_not_import_the_library_of_grpc():
    """It speaks gRPC itself; the library's threads and handlers for forks stay out of the process."""
    assert [m.name for m in modules() if {name.partition(".")[0] for name in m.imports()} & _GRPC] == []


def test_only_the_worker_side_imports_handlers():
    """User code runs only in workers, here or on nodes; the server only names handlers, and the package
    offers ``Handler`` to users. Ray's helper is a separate process, which ends with the server as workers do.
    ``modelserver migrate`` reads the table of names.
    """
    side = ("modelserver.engine.worker", "modelserver.ext.cluster.node", "modelserver.tools.doctor.worker")
    side += ("modelserver.ext.forking.fork_server", "modelserver.ext.forking.child")
    handlers = "modelserver_handlers"
    apart = {"modelserver.ext.cluster.ray_helper", "modelserver.tools.migrate.ts_names", "modelserver"}
    others = [m for m in modules() if not m.name.startswith((*side, handlers)) and m.name not in apart]

    assert [m.name for m in others if any(i.startswith((*side, handlers)) for i in imported_modules(m))] == []


def test_no_file_imports_itself_by_way_of_others():
    """Imports have no cycle, those for types or by name included: each file can be read with those below."""
    left = {m.name: imported_modules(m) for m in modules()}
    while ends := {
        name
        for name, below in left.items()
        if not below & left.keys() or not any(name in others for others in left.values())
    }:
        left = {name: below for name, below in left.items() if name not in ends}

    assert sorted(left) == []


def test_benchmarks_import_what_there_is():
    """They are run by hand: nothing else would notice that a name is gone."""
    imports = {
        (node.module, alias.name)
        for path in (_ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and node.module in module_names()
        and room_of(node.module) in _ROOMS
        for alias in node.names
    }

    assert [
        f"{module}.{name}"
        for module, name in sorted(imports)
        if not hasattr(import_module(module), name) and f"{module}.{name}" not in module_names()
    ] == []


def test_the_architecture_shows_the_house_as_it_is():
    """Its table has every folder of a room, and the files that it names are there."""
    page = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    house = _ROOT / "app" / "modelserver"
    rows = re.findall(r"(?m)^\| (`.*?`) \|", page)
    named = {name.rstrip("/") for cell in rows for name in re.findall(r"`([^`]+)`", cell)}
    folders = {path.parent.relative_to(house).as_posix() for path in house.glob("*/*/__init__.py")}
    files = {name for name in re.findall(r"`([a-z_/0-9]+\.py)`", page) if "test" not in name}

    assert {folder for folder in folders if folder.partition("/")[0] in _ROOMS} - named == set()
    assert [name for name in files if not (house / name).is_file()] == []


def test_a_question_about_the_code_leads_to_two_files_at_most():
    """That these files are there is what the test above holds."""
    page = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    answers = re.findall(r"(?m)^\| [A-Z][^|`]*\? \| (.*) \|$", page)

    assert len(answers) == page.count("? | ") > 4
    assert [text for text in answers if not 1 <= len(re.findall(r"`[^`]+\.py`", text)) <= 2] == []


def test_modules_are_described():
    """Each opens with a docstring."""
    assert [module.name for module in modules() if not ast.get_docstring(module.tree)] == []


def test_public_names_are_described():
    """Classes and functions of a module that others may use have a docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    silent = [
        f"{module.name}.{node.name}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]

    assert silent == []


_HANDLERS = """
    base.BaseHandler vision.VisionHandler image_classifier.ImageClassifier image_segmenter.ImageSegmenter
    object_detector.ObjectDetector text_classifier.TextClassifier envelopes.BaseEnvelope typed.handler.Handler
"""


@pytest.mark.parametrize("name", _HANDLERS.split())
def test_handler_methods_are_described(name):
    """What users override and call has a docstring, inherited or its own."""
    module, _, attribute = name.rpartition(".")
    handler = getattr(import_module(f"modelserver_handlers.{module}"), attribute)
    methods = [
        method
        for method_name, method in inspect.getmembers(handler, inspect.isfunction)
        if not method_name.startswith("_") and method.__module__.startswith("modelserver_handlers")
    ]

    assert methods
    assert [method.__qualname__ for method in methods if not inspect.getdoc(method)] == []


_SMALL = 60


def lines_by_file():
    """The files of both packages, by their paths below the root."""
    return {
        path.relative_to(_ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for package, root in _PACKAGES.items()
        for path in (root / package).rglob("*.py")
    }


def test_modules_have_their_tests():
    """What has more than 60 lines is tested in a file of its name, in the folder that mirrors its own."""
    expected = set()
    for name, lines in lines_by_file().items():
        folder, _, module = name.removesuffix(".py").partition("/")[2].partition("/")[2].rpartition("/")
        if lines > _SMALL and module != "__init__":
            base = ["tests", *(["handlers"] if name.startswith("handlers/") else []), *filter(None, [folder])]
            expected.add("/".join([*base, f"test_{module.strip('_')}.py"]))

    assert {test for test in expected if not (_ROOT / test).is_file()} == set()


def test_the_package_says_who_it_is():
    """Name, version, licence, oldest Python and the README are in the metadata."""
    package = metadata("modelserver")

    assert package["Name"] == "modelserver"
    assert package["Version"] == modelserver.__version__
    assert package["License-Expression"] == "Apache-2.0"
    assert package["Requires-Python"] == ">=3.10"
    assert package.get_all("License-File") == ["LICENSE"]


def test_what_we_reach_into_is_bounded():
    """A library whose inner parts are used has an upper bound, which admits what is installed and tested here
    but not the next release that may change anything; the page that lists it for pip says the same.
    """
    project = (_ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[project.optional")[0]
    (requirement,) = (Requirement(line) for line in re.findall(r'"(httpx[^"]*)",', project))
    installed = Version(version("httpx"))
    (most,) = (bound for bound in requirement.specifier if bound.operator == "<")

    assert installed in requirement.specifier
    assert f"{installed.major}.{installed.minor + 1}" not in requirement.specifier
    assert f"'httpx{most}'" in (_ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


# The names in the documents of uvicorn and httptools.
_PARSERS = "HttpRequestParser HttpResponseParser parse_url"
_PARSER_ERRORS = "HttpParserCallbackError HttpParserError HttpParserInvalidURLError HttpParserUpgrade"
_PUBLIC_NAMES = {"uvicorn": {"Config"}, "httptools": {*_PARSERS.split(), *_PARSER_ERRORS.split()}}


def test_uvicorn_and_httptools_are_used_by_public_names():
    """So they need no upper bounds: nothing is imported from their modules, and no other name is used."""
    used = {name: set() for name in _PUBLIC_NAMES}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module in used:
                used[node.module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and (library := getattr(node.value, "id", None)) in used:
                used[library].add(node.attr)
        inner = {name for name in module.imports() if name.startswith(tuple(f"{each}." for each in used))}
        assert inner <= {f"{library}.{name}" for library, names in _PUBLIC_NAMES.items() for name in names}

    assert used == _PUBLIC_NAMES


def test_commands_can_be_imported():
    """``modelserver`` and ``modelserver-archive`` name functions that can be imported."""
    scripts = entry_points(group="console_scripts", name="modelserver")
    archive = entry_points(group="console_scripts", name="modelserver-archive")

    assert [callable(script.load()) for script in (*scripts, *archive)] == [True, True]


@pytest.mark.parametrize("package", _PACKAGES)
def test_packages_are_typed(package):
    """Type checkers of users find the marker."""
    assert (_PACKAGES[package] / package / "py.typed").is_file()


@pytest.mark.parametrize("root", _PACKAGES.values(), ids=lambda root: root.name)
def test_import_roots_hold_one_package(root):
    """No loose modules, and no ``__init__.py`` that would make a package of the root."""
    assert [path.name for path in root.glob("*.py")] == []
    assert len([path for path in root.iterdir() if (path / "__init__.py").exists()]) == 1


def test_the_changelog_has_a_section_for_what_comes():
    """Lines of a change have a place to go."""
    assert "\n## Unreleased\n" in (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_tests_are_where_their_subject_is():
    """A folder of tests is named for a room, or is for tests of the whole server."""
    used = {path.name for path in (_ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert used <= {*_ROOMS, *_PUBLIC, "handlers", "benchmarks", "deploy", "e2e", "differential", "campaign"}
