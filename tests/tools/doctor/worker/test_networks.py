import contextlib
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from modelserver.tools.doctor.worker.networks import Building, Gradients, networks_in_training


class Module:
    """Stands in for torch's class: ``parts`` are within it."""

    def __init__(self, *parts, weights=0, training=True):
        self.parts, self.weights, self.training = parts, weights, training

    def modules(self):
        yield self
        for part in self.parts:
            yield from part.modules()

    def parameters(self):
        yield from range(self.weights)


class Dropout(Module):
    """A layer that depends on the mode."""


Dropout.__module__ = "torch.nn.modules.dropout"


class Torch:
    """Calls its hooks when a test says so."""

    def __init__(self):
        self.hooks = []
        module = SimpleNamespace(register_module_parameter_registration_hook=self.watch_weights)
        self.nn = SimpleNamespace(Module=Module, modules=SimpleNamespace(module=module))
        self.autograd = SimpleNamespace(graph=SimpleNamespace(saved_tensors_hooks=self.use))

    def watch_weights(self, hook):
        self.hooks.append(hook)
        return SimpleNamespace(remove=self.hooks.clear)

    @contextlib.contextmanager
    def use(self, *hooks):
        self.hooks += hooks
        yield
        self.hooks.clear()


@pytest.fixture
def torch(monkeypatch):
    """Imported, as far as anybody can tell."""
    stand_in = Torch()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return stand_in


def test_networks_are_recognized(torch, tmp_path, monkeypatch):
    held = Module(Dropout(), weights=1)
    inside = SimpleNamespace(net=Module(weights=2))
    handler = SimpleNamespace(net=held, same=[held], more={"a": (Module(weights=3),)}, inside=inside)
    handler.ready = Module(weights=1, training=False)
    own = ModuleType("own_module")
    own.__file__ = str(tmp_path / "own_module.py")
    own.NET = Module(Dropout(), weights=1)
    monkeypatch.setitem(sys.modules, "own_module", own)

    assert [(each.name, each.layers) for each in networks_in_training(handler, str(tmp_path))] == [
        ("self.net", ["Dropout"]),
        ("self.more['a'][0]", []),
        ("self.inside.net", []),
        ("NET", ["Dropout"]),
    ]
    others = SimpleNamespace(transform=Module(Module()), kind=Module, text="a", context=SimpleNamespace())
    monkeypatch.delitem(sys.modules, "own_module")
    assert networks_in_training(others, str(tmp_path)) == networks_in_training(None, str(tmp_path)) == []
    monkeypatch.delitem(sys.modules, "torch")
    with Gradients("/") as gradients, Building("/") as building:
        pass
    assert (gradients.left_on, building.place) == (False, None)
    assert networks_in_training(handler, "/") == []
    assert "torch" not in sys.modules


def test_unused_gradients_are_seen(torch, tmp_path):
    with Gradients(str(tmp_path)) as idle:
        pass
    with Gradients(str(tmp_path)) as built:
        assert torch.hooks[0]("tensor") == "tensor"
    with Gradients(str(tmp_path)) as used:
        torch.hooks[1](torch.hooks[0]("tensor"))

    assert [each.left_on for each in (idle, built, used)] == [False, True, False]


def test_networks_that_are_built(torch):
    class Own:
        def __init__(self):
            torch.hooks[0]("layer", "weight", None)

    with Building(str(Path(__file__).parent)) as idle:
        pass
    with Building(str(Path(__file__).parent)) as building:
        Own()

    assert idle.place is None
    assert building.place.file == "test_networks.py"
    assert building.place.function == "test_networks_that_are_built"
    assert torch.hooks == []


def test_networks_that_a_library_loads(torch, monkeypatch):
    class InferenceSession:
        def __init__(self, path):
            self.path = path

    own = InferenceSession.__init__
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=InferenceSession))
    with Building(str(Path(__file__).parent)) as building:
        session = InferenceSession("a.onnx")

    assert session.path == "a.onnx"
    assert building.place.function == "test_networks_that_a_library_loads"
    assert InferenceSession.__init__ is own


@pytest.mark.slow
def test_networks_that_torch_loads(tmp_path):
    """TorchScript by file or bytes, and exported programs. What torch.load reads was opened by Python."""
    torch = pytest.importorskip("torch")
    network, row = torch.nn.Linear(2, 2).eval(), torch.ones(1, 2)
    script, weights, program = (str(tmp_path / name) for name in ("a.ts", "a.pt", "a.pt2"))
    torch.jit.trace(network, row).save(script)
    torch.save(network.state_dict(), weights)
    torch.export.save(torch.export.export(network, (row,)), program)
    read = {name: Path(name).read_bytes() for name in (script, weights)}
    loads = {
        "script": lambda: torch.jit.load(script),
        "bytes of a script": lambda: torch.jit.load(io.BytesIO(read[script])),
        "program": lambda: torch.export.load(program),
        "weights": lambda: torch.load(weights),
        "bytes of weights": lambda: torch.load(io.BytesIO(read[weights])),
    }
    seen = {}
    for name, load in loads.items():
        with Building(str(Path(__file__).parent)) as building:
            load()
        seen[name] = building.place is not None

    assert [name for name, was_seen in seen.items() if was_seen] == ["script", "bytes of a script", "program"]
