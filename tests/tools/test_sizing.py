import json
import shlex

import pytest
from tests.e2e.blocks import BLOCKS

from modelserver.tools import llm

PAGE = "docs/language-models.md: Memory"
CONFIG = json.loads(BLOCKS[f"{PAGE}: json 1"].text)


def sizes(folder, *flags, **changes):
    """Asks for the size of the page's model with other settings; returns the exit status."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return llm.main(["--model_id", str(folder), *flags])


def test_example_of_the_page_is_computed(tmp_path, monkeypatch, capsys):
    """docs/language-models.md shows what its command prints."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "llama-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _, command, *flags = shlex.split(BLOCKS[f"{PAGE}: sh 1"].text)

    assert (command, llm.main(flags)) == ("llm", 0)
    assert capsys.readouterr().out.strip() == BLOCKS[f"{PAGE}: text 1"].text.strip()


@pytest.mark.parametrize(
    ("changes", "flags", "line"),
    [
        ({"tie_word_embeddings": True}, (), "weights: 15.01 GB"),
        ({"num_local_experts": 8}, (), "weights: 94.98 GB"),
        ({}, ("--dtype", "float32"), "weights: 32.12 GB"),
        ({"num_key_value_heads": None}, (), "cache: 524,288 bytes"),
        ({"head_dim": 64}, (), "cache: 65,536 bytes"),
        ({}, ("--vllm_engine.tensor_parallel_size", "2"), "of 2 x 80 GB: 147.20 GB"),
        ({}, ("--vllm_engine.gpu_memory_utilization", "0.5"), "takes 0.5 of 1 x 80 GB: 40.00 GB"),
        ({}, ("--memory", "24"), "not enough: weights and one request need 33.24 GB"),
        ({"text_config": {"num_hidden_layers": 16}}, (), "cache: 65,536 bytes"),
    ],
)
def test_sizes_follow_the_configuration(changes, flags, line, tmp_path, capsys):
    assert sizes(tmp_path, "--memory", "80", *flags, **changes) == 0
    assert line in capsys.readouterr().out


def test_weights_are_those_of_the_files(tmp_path, capsys):
    """If they are there: they may be quantised."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(5_000_000_000)
    sizes(tmp_path, "--memory", "80")

    assert "weights: 5.00 GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "is not that of a language model"),
        ({"kv_lora_rank": 512}, "not all layers keep whole keys and values"),
        ({"layer_types": ["sliding_attention"]}, "not all layers keep whole keys and values"),
        ({"dtype": "int3"}, "is not that of a language model: 'int3'"),
    ],
)
def test_other_models_are_refused(changes, message, tmp_path, capsys):
    assert sizes(tmp_path, "--memory", "80", **changes) == 1
    assert message in capsys.readouterr().err


def test_folder_without_a_configuration_is_refused(tmp_path, capsys):
    assert llm.main(["--model_id", str(tmp_path), "--memory", "80"]) == 1
    assert "needs a config.json" in capsys.readouterr().err
