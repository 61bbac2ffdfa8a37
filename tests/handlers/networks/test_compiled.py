"""A network that AOTInductor compiles: code that is kept, and the forms in which archives hold it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.handlers.networks.conftest import Net, rows

from modelserver_handlers.base import BaseHandler
from modelserver_handlers.handler_options import NetworkOptions
from modelserver_handlers.networks import ahead
from modelserver_handlers.networks.ahead import Compiled, CompiledForward, compile_ahead
from modelserver_handlers.networks.optimize import FastForward, deviation
from modelserver_handlers.networks.readiness import Batches, make_ready
from modelserver_handlers.networks.weights import load_compiled_library, load_exported

pytestmark = [
    pytest.mark.slow,  # compiles a network
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler"),
]

CPU = torch.device("cpu")
SHAPE = (3, 16, 16)
# Settings of the compiler that make it quick; headers would be compiled for each cache.
FAST = {
    "options": {
        "aot_inductor.compile_wrapper_opt_level": "O0",
        "cpp_cache_precompile_headers": False,
        "aot_inductor.precompile_headers": False,
    }
}


@dataclass
class Made:
    """The code of ``Net``, the cache that it is kept in, and the package that the compiler made."""

    compiled: Compiled
    cache: Path
    package: Path

    @property
    def library(self):
        (path,) = self.cache.glob("ahead/*.so")
        return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    cache, package = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("package") / "net.pt2"
    inductor = ahead._inductor()

    def compile_and_keep(program, *, package_path, inductor_configs):
        inductor.aoti_compile_and_package(
            program, package_path=package_path, inductor_configs=inductor_configs
        )
        shutil.copy(package_path, package)

    compiler = SimpleNamespace(aoti_compile_and_package=compile_and_keep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODELSERVER_CACHE", str(cache))
        patch.setattr(ahead, "_inductor", lambda: compiler)
        compiled = compile_ahead(Net(), FAST, SHAPE, 4, "fp32")
    return Made(compiled, cache, package)


def assert_computes_the_same(run, *counts):
    """The results are equal for batches of so many rows."""
    net = Net()
    for count in counts:
        with torch.inference_mode():
            inputs = rows(count, SHAPE)
            assert deviation(run(inputs), net(inputs)) < 1e-5


def test_networks_are_compiled_once(made, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", str(made.cache))
    monkeypatch.setattr(ahead, "_make", lambda *_: pytest.fail("it was compiled again"))
    second = compile_ahead(Net(), FAST, SHAPE, 4, "fp32")

    assert [path.suffix for path in sorted((made.cache / "ahead").iterdir())] == [".lock", ".so"]
    for compiled in (made.compiled, second):
        assert_computes_the_same(compiled.run, 1, 2, 3, 4, 9)


def test_broken_files_are_made_anew(made, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    (cache / "ahead").mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    broken = cache / "ahead" / made.library.name
    broken.write_bytes(b"no library")

    def make(program, arguments, path):
        assert not path.exists()
        shutil.copy(made.library, path)
        return ahead._opened(path)

    monkeypatch.setattr(ahead, "_make", make)

    assert compile_ahead(Net(), FAST, SHAPE, 4, "fp32") is not None
    assert broken.read_bytes() == made.library.read_bytes()


def test_ready_networks_use_the_code_for_batches(made, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", str(made.cache))
    net = Net()
    document = {"pt2": {"compile": {"enable": True, **FAST}}, "precision": "fp32"}
    ready = make_ready(net, NetworkOptions.parse(document), document, Batches(4, SHAPE), CPU)

    assert ready is net
    assert isinstance(net.forward, CompiledForward)
    assert isinstance(net.forward.plain, FastForward)
    assert_computes_the_same(net, 1, 3)
    with torch.inference_mode():
        assert net(rows(3, SHAPE)).dtype == torch.float32


def test_compiled_package_computes_the_same(made):
    assert_computes_the_same(load_exported(made.package, CPU), 3)


@pytest.mark.usefixtures("gpus")
def test_worker_with_a_gpu_serves_a_package_for_processors(made, make_context):
    handler, context = BaseHandler(), make_context(made.package.parent, serializedFile="net.pt2")
    context.system_properties["gpu_id"] = 0
    handler.initialize(context)

    assert_computes_the_same(handler.inference, 3)
    assert (handler.device, handler.map_location) == (CPU, "cpu")
    assert context._ms_warnings == [
        "net.pt2 was compiled for a processor: it is computed there, not on cuda:0"
    ]


def test_compiled_library_computes_the_same(made):
    assert_computes_the_same(load_compiled_library(made.library, "cpu"), 3)
