import pytest

from modelserver.errors import ConfigError
from modelserver.tools.serve.options import read_options


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "handler.py").write_text("")
    (tmp_path / "many").mkdir()
    for name in ("a.py", "b.py", "c.py", "d.py", "x.csv", "y.csv"):
        (tmp_path / "many" / name).write_text("")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "bert"}')
    for name in ("weights.pt", "net.pt2", "model.mar", "input.json"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "url", "file"),
    [
        (["sub/handler.py"], "{here}/sub/handler.py", "sub/handler.py"),
        (["sub/handler.py:Name"], "{here}/sub/handler.py:Name", "sub/handler.py"),
        (
            ["sub/handler.py:f", "--model-file", "weights.pt"],
            "{here}/sub/handler.py:f?model_file={here}/weights.pt",
            "sub/handler.py",
        ),
        (["net.pt2"], "{here}/net.pt2", "net.pt2"),
        (["./sub/"], "{here}/sub", "sub"),
        (["sub/../model.mar"], "{here}/model.mar", "model.mar"),
        (["torchvision://resnet18"], "torchvision://resnet18", None),
        (["org/name"], "hf://org/name", None),
        (["org/name-1.5@main", "--trust"], "hf://org/name-1.5@main?trust_remote_code=true", None),
        (["hf://org/name?engine=vllm", "--task", "rerank"], "hf://org/name?engine=vllm&task=rerank", None),
        (["hub", "--engine", "transformers"], "{here}/hub?engine=transformers", "hub"),
    ],
)
def test_source_becomes_registration_url(here, arguments, url, file):
    expected = read_options(arguments)

    assert expected.registration.url == url.format(here=here)
    assert expected.registration.trusted
    assert expected.file == (None if file is None else here / file)
    assert expected.handler == ("base_handler" if file == "net.pt2" else "")


def test_options_reach_the_settings(here):
    flags = (
        "--name m --batch-size 8 --max-batch-delay 20 --workers 2 --route /api --reload --input input.json"
    )
    expected = read_options(["sub/handler.py", *flags.split()])
    values = expected.registration

    assert (values.model_name, values.batch_size, values.max_batch_delay) == ("m", 8, 20)
    assert (values.min_workers, values.max_workers, values.route) == (2, 2, "/api")
    assert expected.reload
    assert expected.input_file == here / "input.json"


def test_it_listens_on_loopback(here):
    flags = read_options(["sub/handler.py", "--port", "9000"]).flags()

    assert [flags[f"{role}_address"] for role in ("inference", "management", "metrics")] == [
        f"http://127.0.0.1:{port}" for port in (9000, 9001, 9002)
    ]
    assert flags["model_store"] == str(here / "sub")
    assert (flags["load_models"], flags["model_snapshot"], flags["enable_grpc_api"]) == ("", "", "false")
    assert read_options(["torchvision://resnet18"]).flags()["model_store"] == str(here)
    network = read_options(["net.pt2"]).flags()
    assert network["metrics_address"] == "http://127.0.0.1:8082"
    assert "trust_pickles" not in network
    assert read_options(["net.pt2", "--trust"]).flags()["trust_pickles"] == "true"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "SOURCE: absent.py does not exist"),
        (["sub/handlr.py"], "SOURCE: sub/handlr.py does not exist; handler.py does"),
        (["sub/handler"], "SOURCE: sub/handler does not exist; handler.py does"),
        (["sub/nofile.py"], "SOURCE: sub/nofile.py does not exist; handler.py does$"),
        (["many/nofile.py"], "does not exist; a.py, b.py and 2 others do$"),
        (["many/nofile.csv"], "does not exist; x.csv and y.csv do$"),
        (["absent.py:Name"], "SOURCE: absent.py does not exist"),
        (["sub/handler.py", "--model-file", "absent.pt"], "--model-file: absent.pt does not exist"),
        (["sub/handler.py", "--input", "absent"], "--input: absent does not exist"),
        (["net.pt2", "--model-file", "weights.pt"], "--model-file is for a script, and net.pt2 is none"),
        (["torchvision://resnet18", "--model-file", "weights.pt"], "--model-file is for a script"),
        (["torchvision://resnet18", "--reload"], "--reload watches files"),
        (["sub/handler.py", "--port", "0"], "--port=0: a number from 1 to 65533 is needed"),
        (["sub/handler.py", "--port", "65535"], "--port=65535"),
        (["sub/handler.py", "--batch-size", "0"], "--batch-size=0: a number of at least 1"),
        (["sub/handler.py", "--workers", "-1"], "--workers=-1"),
        (["net.pt2", "--task", "rerank"], "--task and --engine are for models of the hub, and net.pt2 is"),
        (["sub/absent.mar"], "SOURCE: sub/absent.mar does not exist"),
    ],
)
@pytest.mark.usefixtures("here")
def test_mistake_is_reported_with_hint(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read_options(arguments)
