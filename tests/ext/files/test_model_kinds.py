import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import sys
import types
import warnings
import zipfile
import zlib
from pathlib import Path

import joblib
import pytest
import torch

from modelserver.ext.files.model_kinds import ModelKind, Seen, advice, look

NETWORK = torch.nn.Sequential(torch.nn.Linear(4, 3))
LINEAR = "sklearn.linear_model._base.LinearRegression"


def linear_model():
    """A model of scikit-learn, which takes seconds to import."""
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit([[1.0], [2.0]], [1.0, 2.0])


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def scripted():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(NETWORK), buffer)
    return buffer.getvalue()


def exported():
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(NETWORK, (torch.zeros(2, 4),)), buffer)
    return buffer.getvalue()


def dumped(value):
    buffer = io.BytesIO()
    joblib.dump(value, buffer)
    return buffer.getvalue()


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_json", ".json"), text)
    return buffer.getvalue()


def safetensors(*names):
    header = json.dumps({"__metadata__": {}, **{name: {"dtype": "F32"} for name in names}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (lambda: saved(NETWORK), Seen(ModelKind.MODULE, "torch.nn.modules.container.Sequential")),
        (
            lambda: saved(NETWORK, _use_new_zipfile_serialization=False),
            Seen(ModelKind.MODULE, "torch.nn.modules.container.Sequential"),
        ),
        (lambda: saved(NETWORK.state_dict()), Seen(ModelKind.WEIGHTS, "0.weight, 0.bias")),
        (
            lambda: saved({"model": NETWORK.state_dict(), "epoch": 1}),
            Seen(ModelKind.WEIGHTS, "0.weight, 0.bias"),
        ),
        (scripted, Seen(ModelKind.TORCHSCRIPT)),
        pytest.param(
            exported, Seen(ModelKind.EXPORTED), marks=pytest.mark.slow
        ),  # torch.export takes seconds
        (lambda: dumped(linear_model()), Seen(ModelKind.PICKLE, LINEAR)),
        (lambda: pickle.dumps(linear_model(), protocol=2), Seen(ModelKind.PICKLE, LINEAR)),
        (lambda: zlib.compress(dumped(linear_model())), Seen(ModelKind.PICKLE, LINEAR)),
        (lambda: gzip.compress(dumped(linear_model())), Seen(ModelKind.PICKLE, LINEAR)),
        (lambda: bz2.compress(dumped(linear_model())), Seen(ModelKind.PICKLE, LINEAR)),
        (lambda: lzma.compress(dumped(linear_model())), Seen(ModelKind.PICKLE, LINEAR)),
        (lambda: pickle.dumps({"a": 1}), Seen(ModelKind.PICKLE)),
        (lambda: zipped(schema_json="{}"), Seen(ModelKind.SKOPS)),
        (lambda: zipped(other_json="{}"), Seen(ModelKind.UNKNOWN)),
        (lambda: b'{"learner":{}}', Seen(ModelKind.XGBOOST_JSON)),
        (lambda: b"{L\0\0\0\0\0\0\0\7learner{", Seen(ModelKind.XGBOOST_UBJSON)),
        (lambda: safetensors("a.weight", "a.bias", "b"), Seen(ModelKind.SAFETENSORS, "a.weight, a.bias, …")),
        (lambda: b"GGUF\3\0\0\0", Seen(ModelKind.GGUF)),
        (lambda: b"", Seen(ModelKind.UNKNOWN)),
        (lambda: b"PK\3\4 and no more", Seen(ModelKind.UNKNOWN)),
        (lambda: b"\x78\x9c and no more", Seen(ModelKind.UNKNOWN)),
        (lambda: bytes(8) + b"{", Seen(ModelKind.UNKNOWN)),
        (lambda: b"\x80\4\x95 and no more", Seen(ModelKind.PICKLE)),
    ],
)
def test_format_is_known_by_content(content, seen, tmp_path):
    """It is known by its content, whatever the file is called; others are not."""
    (tmp_path / "model").write_bytes(content())
    assert look(tmp_path / "model") == seen


class Running:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [pickle.dumps, saved])
def test_a_pickle_is_not_run(write, tmp_path):
    """What it would call is read as a name."""
    (tmp_path / "evil.pt").write_bytes(write(Running(tmp_path / "made")))

    look(tmp_path / "evil.pt")

    assert not (tmp_path / "made").exists()


def code_of(advised):
    return re.split(r":\n\n|\n\nThen: ", advised)[1]


@pytest.mark.slow  # torch.export takes seconds
def test_the_lines_for_a_network_export_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("whole.pt").write_bytes(saved(NETWORK))
    advised = advice(Path("whole.pt"), look(Path("whole.pt")))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code_of(advised), {"rows": torch.zeros(2, 4)})

    assert "a pickled network (torch.nn.modules.container.Sequential)" in advised
    assert advised.endswith("\n\nThen: modelserver serve whole.pt2")
    assert torch.export.load("whole.pt2").module()(torch.ones(5, 4)).shape == (5, 3)


@pytest.mark.parametrize("file", ["weights.pt", "weights.safetensors"])
def test_the_lines_for_weights_serve_them(file, tmp_path, monkeypatch):
    network = types.ModuleType("network")
    network.Network = lambda: torch.nn.Sequential(torch.nn.Linear(4, 3))
    loader = types.ModuleType("safetensors.torch")
    loader.load_file = lambda _: NETWORK.state_dict()
    for name, module in (("network", network), ("safetensors", loader), ("safetensors.torch", loader)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    content = saved(NETWORK.state_dict()) if file == "weights.pt" else safetensors("0.weight", "0.bias")
    Path(file).write_bytes(content)
    advised = advice(Path(file), look(Path(file)))
    names = {}

    exec(code_of(advised), names)
    handler = names["Served"]()
    handler.load(None)

    assert f"{file} has weights" in advised
    assert "without their network (0.weight, 0.bias). A script beside it loads them" in advised
    rows = torch.ones(2, 4)
    assert torch.equal(handler.predict(rows), NETWORK(rows))


def test_advice_names_what_else_helps():
    """Trust for a pickle, with the reason; the library for llama.cpp's weights; else what is served."""
    pickled = advice(Path("iris.joblib"), Seen(ModelKind.PICKLE, LINEAR))
    llama = advice(Path("m.gguf"), Seen(ModelKind.GGUF))

    assert f"a pickle ({LINEAR}), which can run any code when it is loaded" in pickled
    assert "\nmodelserver serve iris.joblib --trust\n" in pickled
    assert "skops.io.dump(model, 'iris.skops')" in pickled
    assert "self.llama = llama_cpp.Llama('m.gguf')" in code_of(llama)
    compile(code_of(llama), "handler.py", "exec")
    assert advice(Path("m.skops"), Seen(ModelKind.SKOPS)) == ""
