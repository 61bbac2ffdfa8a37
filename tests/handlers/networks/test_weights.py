import io
import json
import zipfile
from unittest.mock import Mock

import pytest
import torch
from tests.handlers.parts import network
from torch import nn

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks import weights

CPU = torch.device("cpu")
MODEL = network("Net", "self.layer(x)", layer="nn.Linear(3, 2)")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, rows):
        return self.layer(rows)


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def rows():
    return torch.arange(15.0).reshape(5, 3) / 7


@pytest.fixture
def folder(tmp_path, net):
    (tmp_path / "net_of_weights_test.py").write_text(MODEL)
    torch.save(net.state_dict(), tmp_path / "net.pth")
    return tmp_path


def same(left, right):
    return torch.allclose(left, right, rtol=1e-5, atol=1e-7)


def test_weights_are_mapped_not_copied(folder):
    state = weights.read_state(folder / "net.pth")
    net = Net()
    weights.put_state(net, state, "net.pth")

    assert net.layer.weight.data_ptr() == state["layer.weight"].data_ptr()


def test_weights_of_other_types_and_formats_are_converted(net, rows, tmp_path):
    torch.save({key: value.half() for key, value in net.state_dict().items()}, tmp_path / "half.pth")
    loaded = Net()
    weights.put_state(loaded, weights.read_state(tmp_path / "half.pth"), "half.pth")

    assert loaded.layer.weight.dtype == torch.float32
    assert torch.allclose(loaded(rows), net(rows), atol=1e-2)

    torch.save(net.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)

    assert torch.equal(weights.read_state(tmp_path / "old.pth")["layer.bias"], net.layer.bias)


def test_versions_of_modules_stay(net, tmp_path):
    """A state dict keeps what torch notes beside its tensors, which old modules need to load."""
    torch.save(net.state_dict(), tmp_path / "net.pth")
    assert vars(weights.read_state(tmp_path / "net.pth")) == vars(net.state_dict())


OVERRIDES = {
    "renames": """
    def load_state_dict(self, state_dict, strict=True):
        for key in list(state_dict):
            state_dict[key.replace("old.", "layer.")] = state_dict.pop(key)
        return super().load_state_dict(state_dict, strict)
""",
    "takes one argument": """
    def load_state_dict(self, checkpoint):
        super().load_state_dict({key.replace("old.", "layer."): value for key, value in checkpoint.items()})
        return self
""",
    "returns nothing": """
    def load_state_dict(self, *state_dicts):
        (state_dict,) = state_dicts
        with torch.no_grad():
            self.layer.weight.copy_(state_dict["old.weight"])
            self.layer.bias = nn.Parameter(state_dict["old.bias"])
""",
}


@pytest.mark.parametrize("override", OVERRIDES.values(), ids=OVERRIDES.keys())
def test_networks_may_load_themselves(override, net, rows, tmp_path):
    (tmp_path / "model.py").write_text(f"{MODEL}{override}")
    torch.save({f"old.{key}": value for key, value in net.layer.state_dict().items()}, tmp_path / "net.pth")
    loaded = weights.load_eager(tmp_path, "model.py", tmp_path / "net.pth")

    assert same(loaded(rows), net(rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"^bad\.pth "),
        (b"not weights", r"^bad\.pth "),
        (b"PK\x03\x04 broken", r"^bad\.pth "),
        (torch.zeros(3), r"bad\.pth holds a Tensor, not a state dict"),
        (Net(), r"bad\.pth was not loaded.*Net.*torch\.save\(model\.state_dict"),
    ],
    ids=["empty", "text", "half a file", "a tensor", "code"],
)
def test_files_without_a_state_dict_are_refused(content, message, tmp_path):
    """A file of another kind is named (F40); for a pickled network with reason and way out (F61)."""
    if isinstance(content, bytes):
        (tmp_path / "bad.pth").write_bytes(content)
    else:
        torch.save(content, tmp_path / "bad.pth")

    with pytest.raises(ModelLoadError, match=message):
        weights.read_state(tmp_path / "bad.pth")


def test_misfits_are_named_however_they_are_loaded(folder, tmp_path):
    """Weights of another network are refused with the file's name and what is missing (F40)."""
    torch.save({"layer.weight": torch.zeros(2, 4)}, tmp_path / "other.pth")

    with pytest.raises(ModelLoadError, match=r"(?s)other\.pth does not fit the model.*layer\.bias"):
        weights.load_eager(folder, "net_of_weights_test.py", tmp_path / "other.pth")

    (tmp_path / "model.py").write_text(f"{MODEL}{OVERRIDES['takes one argument']}")
    torch.save({"old.weight": torch.zeros(2, 3)}, tmp_path / "net.pth")

    with pytest.raises(ModelLoadError, match=r"(?s)net\.pth does not fit the model.*layer\.bias"):
        weights.load_eager(tmp_path, "model.py", tmp_path / "net.pth")


def test_exported_programs_take_any_batch(net, rows, tmp_path):
    size = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (rows,), dynamic_shapes=({0: size},))
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = weights.load_exported(tmp_path / "net.pt2", CPU)

    assert same(loaded(rows), net(rows))
    assert same(loaded(rows[:2]), net(rows[:2]))


class Counted(Net):
    """With a constant, and a tensor that is made where the input is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.ones(2))

    def forward(self, rows):
        return self.layer(rows) + self.offset + torch.arange(2, device=rows.device)


def exported_on_gpu(network, rows, path):
    """Writes what torch.export.save writes for a network and example inputs on ``cuda:0``."""
    size = torch.export.Dim("batch", min=1, max=64)
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(network, (rows,), dynamic_shapes=({0: size},)), buffer)
    replaced = _replaced(buffer.getvalue(), b'"type": "cpu", "index": null', b'"type": "cuda", "index": 0')
    path.write_bytes(replaced)


def _replaced(archive, old, new):
    """A zip file with other bytes in its entries; pickled tensors are moved from the processor to a GPU."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            entry = source.read(name)
            if entry.startswith(b"PK"):
                entry = _replaced(entry, b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0")
            target.writestr(name, entry.replace(old, new))
    return buffer.getvalue()


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_programs_of_a_gpu_are_loaded_to_the_workers_device(place, rows, tmp_path):
    """They do not touch the GPU of their export, which is not here; ``meta`` stands for another."""
    network = Counted().eval()
    exported_on_gpu(network, rows, tmp_path / "net.pt2")
    loaded = weights.load_exported(tmp_path / "net.pt2", torch.device(place))
    outputs = loaded(rows[:2].to(place))

    assert {tensor.device.type for tensor in [outputs, *loaded.state_dict().values()]} == {place}
    assert place == "meta" or same(outputs, network(rows[:2]))


def test_pickled_tensors_of_others_stay_where_they_belong(rows):
    buffer = io.BytesIO()
    torch.save(rows, buffer)
    on_gpu = _replaced(buffer.getvalue(), b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0")

    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(io.BytesIO(on_gpu), weights_only=True)


def write_package(folder, kernels="", **notes):
    """A file with what AOTInductor notes beside its code."""
    path = folder / "net.pt2"
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("net/version", "0")
        package.writestr("net/data/aotinductor/model/c1.wrapper.so", b"")
        if notes:
            package.writestr("net/data/aotinductor/model/c1.wrapper_metadata.json", json.dumps(notes))
        if kernels:
            package.writestr(f"net/data/aotinductor/model/{kernels}", b"")
    return path


GPU = torch.device("cuda", 0)
FOR_GPUS = {"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": "80"}


def test_package_is_computed_where_it_was_compiled_for(tmp_path):
    package = write_package(tmp_path, AOTI_DEVICE_KEY="cpu", AOTI_COMPUTE_CAPABILITY="")

    assert weights.device_of(package, GPU) == CPU
    assert weights.device_of(package, CPU) == CPU

    with pytest.raises(ModelLoadError, match=r"net\.pt2 was compiled for cuda, and .* computes on cpu"):
        weights.device_of(write_package(tmp_path, "k.cubin", **FOR_GPUS), CPU)


@pytest.mark.parametrize("capability", [(9, 0), (7, 5), (10, 0)])
def test_a_package_for_other_gpus_is_refused(capability, gpus, tmp_path):
    gpus.capability = capability
    message = (
        rf"net\.pt2 was compiled for GPUs of compute capability 8\.0, .*has {capability[0]}\.{capability[1]}"
    )

    with pytest.raises(ModelLoadError, match=message):
        weights.device_of(write_package(tmp_path, "k.cubin", **FOR_GPUS), GPU)


@pytest.mark.parametrize(
    ("kernels", "capability", "notes"),
    [
        ("k.cubin", (8, 0), FOR_GPUS),
        ("k.cubin", (8, 6), FOR_GPUS),
        ("k.fatbin", (9, 0), FOR_GPUS),
        ("", (9, 0), FOR_GPUS),
        ("k.cubin", (12, 1), FOR_GPUS | {"AOTI_COMPUTE_CAPABILITY": "120"}),
        ("k.hsaco", (9, 4), FOR_GPUS | {"AOTI_COMPUTE_CAPABILITY": "gfx942"}),
        ("k.cubin", (9, 0), {}),
    ],
)
def test_packages_that_a_gpu_can_run_are_loaded_there(kernels, capability, notes, gpus, tmp_path):
    """Code runs on later GPUs of one generation; other forms than CUDA's are for several, or tell at load."""
    gpus.capability = capability
    assert weights.device_of(write_package(tmp_path, kernels, **notes), GPU) == GPU


LOADERS = {
    "state": weights.read_state,
    "eager": lambda path: weights.load_eager(path.parent, path.name, None),
    "TorchScript": lambda path: weights.load_torchscript(path, CPU),
    "exported": lambda path: weights.load_exported(path, CPU),
    "library": lambda path: weights.load_compiled_library(path, "cpu"),
}


@pytest.mark.parametrize(
    ("loader", "name", "content", "message"),
    [
        ("state", "gone.pth", None, r"Missing the gone\.pth file"),
        ("TorchScript", "gone.x", None, r"Missing the gone\.x file"),
        ("exported", "gone.x", None, r"Missing the gone\.x file"),
        ("library", "gone.so", None, r"Missing the gone\.so file"),
        (
            "eager",
            "two_nets_file.py",
            b"class A: pass\nclass B: pass",
            "Expected only one class as model def",
        ),
        ("TorchScript", "net.pth", None, r"net\.pth is not a TorchScript file.*needs a model file"),
        ("exported", "bad.pt2", b"nothing", r"^bad\.pt2 is not what torch\.export\.save"),
        ("exported", "bad.pt2", b"PK\x05\x06" + bytes(18), r"^bad\.pt2 is not what torch\.export\.save"),
        ("library", "net.so", b"", r"net\.so is compiled and needs a newer torch than"),
    ],
)
def test_other_files_are_refused_by_each_loader(loader, name, content, message, folder, monkeypatch):
    """It is missing, of another kind, has several classes, or needs a newer torch (F40)."""
    monkeypatch.delattr("torch._export.aot_load", raising=False)
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        LOADERS[loader](folder / name)


class Layer(nn.Module):
    """Draws its weights by nn.init."""

    drawn = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        before = torch.get_rng_state()
        nn.init.normal_(self.layer.weight, std=2)
        Layer.drawn += not torch.equal(before, torch.get_rng_state())


class WithTable(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(3), persistent=False)


class WithList(Layer):
    def __init__(self):
        super().__init__()
        self.tables = {"a": [torch.rand(3)]}


class Lenient(Layer):
    """Takes what it finds in a state dict."""

    def load_state_dict(self, state_dict, strict=True, assign=False):
        return super().load_state_dict(state_dict, False, assign)


class OfItsOwn(nn.Linear):
    """A layer that takes nothing of a state dict."""

    def _load_from_state_dict(self, *_):
        pass


class WithLayerOfItsOwn(Layer):
    def __init__(self):
        super().__init__()
        self.layer = OfItsOwn(3, 2)


class Hooked(Layer):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(lambda _, keys: keys.missing_keys.clear())


@pytest.mark.parametrize(("network", "drawn"), [(Layer, 0), (WithTable, 1), (WithList, 1)])
def test_nothing_is_drawn_that_is_replaced(network, drawn):
    Layer.drawn = 0
    model = weights.make_blank(network)

    assert isinstance(model, network)
    assert Layer.drawn == drawn


@pytest.mark.parametrize("network", [Lenient, WithLayerOfItsOwn, Hooked])
def test_what_a_state_dict_may_leave_out_is_drawn(network):
    torch.manual_seed(1)
    model = weights.make_blank(network)
    torch.manual_seed(1)

    assert all(map(torch.equal, model.parameters(), network().parameters()))


def test_a_seeded_table_is_what_it_always_was():
    """Numbers that a network draws for itself are not moved by those that were left out."""

    def make():
        torch.manual_seed(4)
        return WithTable()

    assert torch.equal(weights.make_blank(make).get_buffer("table"), make().get_buffer("table"))


def test_initialising_works_afterwards():
    with pytest.raises(ValueError, match="no"):
        weights.make_blank(Mock(side_effect=ValueError("no")))

    assert nn.init.ones_(torch.zeros(2)).tolist() == [1, 1]
