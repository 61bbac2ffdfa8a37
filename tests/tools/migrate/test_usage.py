import pytest

from modelserver.tools.migrate.archives import Archive
from modelserver.tools.migrate.calls import Probe
from modelserver.tools.migrate.installation import read_installation
from modelserver.tools.migrate.usage import advice_on, usage_of


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "config.properties"
    file.write_text(
        "model_store=.\nnumber_of_netty_threads=4\nipex_enable=true\nbatch_policy=window\nnonsense=1\n"
        "metrics_mode=log\n"
    )
    return file


def read(config, command=None):
    return read_installation(config, command, {}, {})


def test_keys_have_the_states_of_the_guide(config):
    """So have modelserver's own and unknown ones; those without effect are removed by a command."""
    installation = read(config)
    usage = usage_of(installation, [], [])
    remove, start = advice_on(installation, usage, [])
    pattern = "ipex_enable|number_of_netty_threads|nonsense"

    assert remove.commands == [f"sed -i -E '/^ *({pattern}) *[=:]/d' {config}"]
    assert start.commands == [f"modelserver --start --ts-config {config}"]

    assert {part.name: part.state for part in usage["keys"]} == {
        "model_store": "same",
        "number_of_netty_threads": "no effect",
        "ipex_enable": "not yet",
        "batch_policy": "modelserver's own",
        "metrics_mode": "other",
        "nonsense": "unknown",
    }


def test_endpoints_are_counted(config):
    """They are counted by TorchServe's paths; other paths are left out."""
    posted = ("/predictions/m", "/predictions/m/1.0/v1/chat", "/v1/models/m:predict")
    calls = [
        *(Probe("", "inference", "POST", path) for path in posted),
        Probe("", "inference", "PUT", "/predictions/m?x=1"),
        Probe("", "management", "GET", "/models/m/all"),
        Probe("", "inference", "GET", "/nowhere"),
    ]

    endpoints = usage_of(read(config), calls, [])["endpoints"]
    assert endpoints[1].remark == "a failing request in a batch fails alone"  # not "likewise"
    assert [(part.name, part.where) for part in endpoints] == [
        ("inference POST /predictions/{model}", "2 requests"),
        ("inference POST /predictions/{model}/{version}/{rest}", "1 requests"),
        ("inference POST /v1/models/{model}:predict", "1 requests"),
        ("management GET /models/{model}/all", "1 requests"),
    ]


def test_flags_handlers_and_names_have_their_states(config):
    states = {
        "ts.context.Context": "better",
        "ts.service.Context": "same",
        "ts.torch_handler": "same",
        "ts.torch_handler.trt_llm_handler.TRTLLMHandler": "not offered",
        "ts.made_up": "not offered",
    }
    names = {name: f"h.py, line {number}" for number, name in enumerate(states, 1)}
    others = [Archive("b.mar", "trt_llm_handler"), Archive("c.mar", "base_handler")]
    archives = [Archive("a.mar", "h.py", names), *others]
    installation = read(config, "torchserve --start --ppath plugins")
    usage = usage_of(installation, [], archives)

    flags = {part.name: part.state for part in usage["flags"]}
    assert flags == {"--start": "same", "--plugins-path": "no effect"}
    assert [part.state for part in usage["handlers"]] == ["same", "not offered", "same"]
    assert {part.name: part.state for part in usage["ts_names"]} == states
    texts = " ".join(advice.text for advice in advice_on(installation, usage, archives))
    assert "ts.made_up, which a.mar: h.py, line 5 uses, is not here" in texts
    assert "Leave out the flag --plugins-path" in texts


@pytest.mark.parametrize(
    ("setting", "yaml", "advised"),
    [
        ("", None, True),
        ("", "splitInstances: false", False),
        ("", "splitInstances: true", True),
        ("split_instances=false\n", None, False),
        ("compat_defaults=torchserve\n", None, False),
    ],
)
def test_handlers_that_read_instances_get_whole_bodies(config, setting, yaml, advised):
    config.write_text(f"model_store=.\n{setting}")
    installation = read(config)
    archives = [Archive("a.mar", "h.py", places={"instances": "h.py, line 9"}, config_text=yaml)]
    first = advice_on(installation, usage_of(installation, [], archives), archives)[0]

    assert ("a.mar (h.py, line 9)" in first.text) is advised
    assert (list(first.commands) == [f"echo split_instances=false >> {config}"]) is advised
