import pytest
import yaml

from modelserver.models.archives.manifest import parse_manifest
from modelserver.tools import llm


class Server:
    """Stands for the server: keeps what it was started with, and what the model's folder held then."""

    def __init__(self, folder, end=None):
        self._folder = folder
        self._end = end

    def main(self, arguments, extensions):
        self.arguments = arguments
        self.config = yaml.safe_load((self._folder / "model-config.yaml").read_text())
        self.handler = parse_manifest((self._folder / "MAR-INF" / "MANIFEST.json").read_bytes()).handler
        if self._end is not None:
            raise self._end
        return 0


def launch(monkeypatch, server, *arguments):
    monkeypatch.setattr(llm.start_stop, "main", server.main)
    return llm.main(arguments)


def test_folder_is_served_and_removed(tmp_path, monkeypatch):
    """With TorchServe's flags; one from before is replaced."""
    store = tmp_path / "store"
    flags = ["--model_id", "org/model", "--model_name", "chat", "--model_store", str(store)]
    store.mkdir()
    llm.write_model(llm.build_parser().parse_args(flags), {})
    server = Server(store / "chat")
    engine = ["--vllm_engine.max_num_seqs", "8", "--vllm_engine.enforce_eager=true"]
    status = launch(monkeypatch, server, *flags, "--startup_timeout", "60", "--disable_token_auth", *engine)

    assert (status, server.handler) == (0, "vllm_handler")
    expected = f"--foreground --ncs --model-store {store} --models chat --disable-token-auth"
    assert server.arguments == expected.split()
    model = {"model": "org/model", "dtype": "auto", "served_model_name": ["chat"]}
    options = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "startupTimeout": 60,
        "responseTimeout": 1200,
    }
    config = {"vllm_engine_config": {**model, "max_num_seqs": 8, "enforce_eager": True}}
    assert server.config == {**options, "handler": config}
    assert list(store.iterdir()) == []


def test_several_gpus_belong_to_one_worker(tmp_path, monkeypatch):
    server = Server(tmp_path / "model", KeyboardInterrupt())
    flags = ["--model-id", "m", "--model-store", str(tmp_path), "--vllm_engine.tensor_parallel_size", "2"]

    assert launch(monkeypatch, server, *flags) == 130
    assert (server.config["parallelType"], server.config["parallelLevel"]) == ("custom", 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--engine", "trt_llm"], "--engine=trt_llm is not offered: vllm is"),
        (["--strange", "1"], "--strange is unknown: modelserver llm --help lists the flags"),
        (["--vllm_engine.swap_space"], "--vllm_engine.swap_space has no value"),
        (["--model_name", "other"], "other is another model: choose another --model_name"),
        (["--model_name", ".."], "Model name contains special characters."),
    ],
)
def test_what_cannot_be_served_is_refused(flags, message, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "handler.py").write_text("")

    assert llm.main(["--model_id", "m", "--model_store", str(tmp_path), *flags]) == 1
    assert capsys.readouterr().err.splitlines()[0].endswith(message)
    assert [path.name for path in tmp_path.rglob("*.py")] == ["handler.py"]
