"""What is made of model-config.yaml, with and without vLLM."""

import os
import sys

import pytest
from tests.handlers.language.pretended_vllm import AsyncLLM, pretend
from tests.handlers.language.vllm_bench import Bench

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.language.chat import CHAT, COMPLETIONS

pytestmark = pytest.mark.usefixtures("pretended_vllm")
NO_MODEL = "please define model in vllm_engine_config or model_path in handler"


async def test_settings_are_torchserves(tmp_path):
    """Paths below the model's folder come first; unknown settings are named."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "adapter").mkdir()
    bench = await Bench(
        str(tmp_path),
        {"parallelType": "custom", "parallelLevel": 2},
        model_path="weights",
        adapters={"a": "adapter", "b": "org/other"},
        vllm_engine_config={
            "max_num_seqs": 6,
            "swap_space": 4,
            "tool_call_parser": "p",
            "response_role": "r",
            "lora_modules": ["c=adapter", {"name": "d", "path": "org/d", "base_model_name": "m"}],
        },
    ).start()
    arguments = bench.engine.arguments

    assert (arguments.model, arguments.max_num_seqs) == (str(tmp_path / "weights"), 6)
    assert (arguments.enable_lora, arguments.tensor_parallel_size) == (True, 2)
    own = str(tmp_path / "adapter")
    adapters = {name: each.lora_path for name, each in bench.handler.adapters.items()}
    assert adapters == {"a": own, "b": "org/other", "c": own, "d": "org/d"}
    assert set(bench.handler._ms_adapters) == adapters.keys()
    assert bench.context._ms_warnings == [
        "vllm_engine_config: vLLM 0.32.0 does not know swap_space, it is ignored"
    ]
    assert bench.handler._ms_concurrency == 14
    assert bench.handler._ms_endpoints == {CHAT: False, COMPLETIONS: False, "*": False}


async def test_version_that_is_not_tested_is_reported(monkeypatch):
    pretend(monkeypatch, "0.99.1")
    bench = await Bench().start()

    assert bench.context._ms_warnings == ["vLLM 0.99.1 is not a tested version (tested is 0.32)"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vllm_engine_config": {"lora_modules": ["poet"]}}, r"must name a path each: \['poet'\]"),
        ({"vllm_engine_config": {"model": None}}, NO_MODEL),
        ({"adapters": ["a"]}, "adapters must be a mapping"),
    ],
)
async def test_wrong_settings_are_reported(settings, message):
    """A missing model in TorchServe's words."""
    with pytest.raises(ModelLoadError, match=message):
        await Bench(**settings).start()


@pytest.mark.parametrize(("own", "method"), [(None, "spawn"), ("fork", "fork")])
async def test_engine_is_spawned_unless_the_environment_has_another_method(own, method, monkeypatch):
    name = "VLLM_WORKER_MULTIPROC_METHOD"
    monkeypatch.setenv(name, own or "")
    if own is None:
        monkeypatch.delenv(name)
    await Bench().start()

    assert os.environ[name] == method


async def test_missing_library_is_reported(monkeypatch):
    monkeypatch.delattr(sys.modules["vllm.inputs"], "tokens_input")
    with pytest.raises(ModelLoadError, match=r"cannot import name 'tokens_input'.*tested is 0\.32"):
        await Bench().start()
    monkeypatch.delitem(sys.modules, "vllm.inputs")
    with pytest.raises(ModelLoadError, match=r"lacks vllm\.inputs"):
        await Bench().start()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelLoadError, match="pip install vllm"):
        await Bench().start()


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (-9, MemoryError, "vLLM's engine was killed while it started, probably for lack of memory: Eng"),
        (1, RuntimeError, "Engine core .* Engines on one GPU need a gpu_memory_utilization that leaves room"),
    ],
)
async def test_engine_that_does_not_start_is_reported(code, kind, message, monkeypatch):
    """As out of memory if it was killed; its output says more of other reasons."""

    def fail(arguments, **more):
        raise RuntimeError(
            "Engine core initialization failed. See root cause above. "
            f"Failed core proc(s): {{'EngineCore_DP0': {code}}}"
        )

    monkeypatch.setattr(AsyncLLM, "from_engine_args", fail)
    with pytest.raises(kind, match=message):
        await Bench().start()
