import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.handlers.networks.conftest import Net

from modelserver_handlers.networks import ahead
from modelserver_handlers.networks.ahead import Compiled, CompiledForward, compile_ahead

SHAPE = (3, 16, 16)
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


class Peculiar(Net):
    """Gives outputs of another form for a lone row."""

    def forward(self, rows):
        return rows.mean((2, 3)).squeeze()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ahead"


def rows(count=3):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def fake(**more):
    """Code that answers minus one."""
    facts = {"shape": SHAPE, "lone": True, "several": True} | more
    return Compiled(lambda batch: -torch.ones(len(batch)), **facts)


def test_installed_code_answers():
    net = Net()
    net.forward = CompiledForward(net, fake())

    with torch.inference_mode():
        assert (net(rows()) == -1).all()
    assert not (net(rows()) == -1).any()


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3, 16, 17),
        torch.zeros(2, 3, 16, 16, dtype=torch.float64),
        torch.zeros(0, 3, 16, 16),
        torch.zeros(3, 16, 16),
        torch.zeros(2, 3, 16, 16).to_sparse(),
        torch.zeros(2, 3, 16, 16, device="meta"),
        [[0.0]],
        None,
    ],
)
def test_other_inputs_do_not_suit(value):
    """Code looks at nothing itself, so that only batches of its own form may reach it."""
    assert not fake().suits(value)


def test_code_may_be_for_lone_rows_or_several():
    assert fake().suits(rows(1))
    assert fake().suits(rows(5))
    assert not fake(lone=False).suits(rows(1))
    assert not fake(several=False).suits(rows(2))


def test_rows_are_laid_out_first():
    """Code reads memory as if rows followed each other."""
    seen = []
    net = Net()
    net.forward = CompiledForward(
        net, Compiled(lambda batch: seen.append(batch.is_contiguous()), SHAPE, True, True)
    )
    with torch.inference_mode():
        net(rows().contiguous(memory_format=torch.channels_last))

    assert seen == [True]


@pytest.mark.parametrize("arguments", [{"backend": "eager"}, {"disable": True}])
def test_nothing_is_made_of_other_settings_or_scripts_or_without_a_cache(arguments, monkeypatch):
    assert compile_ahead(Net(), arguments, SHAPE, 4, "fp32") is None
    assert compile_ahead(torch.jit.trace(Net(), rows()), {}, SHAPE, 4, "fp32") is None
    monkeypatch.setenv("MODELSERVER_CACHE", "off")
    assert compile_ahead(Net(), {}, SHAPE, 4, "fp32") is None


def test_networks_that_cannot_be_exported_are_refused(caplog):
    class Looking(Net):
        def forward(self, rows):
            return rows if float(rows.sum()) > 0 else -rows

    caplog.set_level("INFO")

    assert compile_ahead(Looking(), {}, SHAPE, 4, "fp32") is None
    assert "cannot be compiled ahead of time" in caplog.text


def test_other_threads_keep_the_environment(monkeypatch):
    with ahead._intermediates_in("/none"):
        monkeypatch.setenv("MODELSERVER_SET_MEANWHILE", "yes")
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/none"

    assert os.environ["MODELSERVER_SET_MEANWHILE"] == "yes"
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") != "/none"


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_killed_compilation_is_continued(own_cache, monkeypatch, is_broken):
    own_cache.mkdir(parents=True, mode=0o700)
    (own_cache / ".abc").mkdir()
    (own_cache / ".abc" / "kernel.so").touch()
    finds = []

    def compile_fake(program, *, package_path, inductor_configs):
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        finds.append((folder / "kernel.so").exists())
        if finds[-1] and is_broken:
            raise OSError("kernel.so: file too short")
        with zipfile.ZipFile(package_path, "w") as package:
            package.writestr("network.so", b"code")

    compiler = SimpleNamespace(aoti_compile_and_package=compile_fake)
    monkeypatch.setattr(ahead, "_inductor", lambda: compiler)
    monkeypatch.setattr(ahead, "_opened", lambda path: path.read_bytes)
    program = None
    run = ahead._make(program, {}, own_cache / "abc.so")

    assert run() == b"code"
    assert finds == ([True, False] if is_broken else [True])
    assert [path.name for path in own_cache.iterdir()] == ["abc.so"]


@NEEDS_COMPILER
def test_code_is_not_used_for_lone_rows_where_its_outputs_differ(monkeypatch):
    monkeypatch.setattr(ahead, "_make", lambda *_: lambda batch: batch.mean((2, 3)))
    compiled = compile_ahead(Peculiar(), {}, SHAPE, 4, "fp32")

    assert (compiled.lone, compiled.several) == (False, True)
