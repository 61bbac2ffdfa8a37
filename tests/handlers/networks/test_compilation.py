from unittest.mock import Mock

import pytest
import torch

from modelserver_handlers.errors import ModelLoadError
from modelserver_handlers.networks.compilation import check_valid_pt2_backend, compile_model


@pytest.fixture
def compiled(monkeypatch):
    fake = Mock(return_value="compiled")
    monkeypatch.setattr(torch, "compile", fake)
    return fake


@pytest.mark.parametrize(
    ("pt2", "arguments"),
    [
        (
            {"compile": {"enable": True, "backend": "inductor", "mode": "max-autotune"}},
            {"backend": "inductor", "mode": "max-autotune"},
        ),
        ({"compile": {"enable": True}}, {}),
        ("inductor", {"backend": "inductor"}),
        ({"backend": "eager", "dynamic": True}, {"backend": "eager", "dynamic": True}),
    ],
)
def test_settings_reach_torch_compile(pt2, arguments, compiled):
    assert compile_model("model", {"pt2": pt2}) == "compiled"
    compiled.assert_called_once_with("model", **arguments)


@pytest.mark.parametrize(
    "config",
    [{}, {"pt2": None}, {"pt2": {"compile": {"enable": False}}}, {"pt2": {"export": {"aot_compile": True}}}],
)
def test_models_stay_without_compile(config, compiled):
    assert compile_model("model", config) == "model"
    compiled.assert_not_called()


def test_backend_that_is_unknown_or_fails_is_a_warning(compiled, caplog):
    assert compile_model("model", {"pt2": {"compile": {"enable": True, "backend": "warp"}}}) == "model"
    compiled.assert_not_called()
    assert "warp is not a supported backend" in caplog.text
    assert all(map(check_valid_pt2_backend, ("openvino", "cudagraphs")))

    compiled.side_effect = RuntimeError("no compiler")
    assert compile_model("model", {"pt2": {"compile": {"enable": True}}}) == "model"
    assert "no compiler" in caplog.text


@pytest.mark.parametrize("pt2", [{"compile": {"backend": "inductor"}}, {"compile": True}, 3])
def test_malformed_settings_stop_the_load(pt2):
    with pytest.raises(ModelLoadError, match="pt2"):
        compile_model("model", {"pt2": pt2})
