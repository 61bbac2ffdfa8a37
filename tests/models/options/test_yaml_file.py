import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.errors import InvalidModel
from modelserver.models.options.table import CONFIG_KEYS, HANDLER_KEYS, Batcher, ModelConfig, Torchrun
from modelserver.models.options.yaml_file import MAX_PROCESSES, load_document, parse_model_config


def _refusal(text):
    with pytest.raises(InvalidModel) as error:
        parse_model_config(text)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_sets_nothing(text):
    assert parse_model_config(text) == (ModelConfig(), [])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("batchSize", "batch_size"),
        ("maxNumSequence", "max_num_sequence"),
        ("maxSequenceJobQueueSize", "max_sequence_job_queue_size"),
    ],
)
def test_numbers_below_one_are_raised(key, name):
    """Where TorchServe clamps to 1, so do we, and say so."""
    config, warnings = parse_model_config(f"{key}: -3")
    assert getattr(config, name) == 1
    assert warnings == [f"model-config.yaml: {key}=-3: a whole number of at least 1 is needed, 1 is used"]


def test_unknown_keys_get_a_hint():
    _, warnings = parse_model_config("batch_size: 4\nmy_key: 1\nbatchsize: 3\n3: 4\n")
    assert warnings == [
        "model-config.yaml: batch_size is not a setting of the server; did you mean batchSize?",
        "model-config.yaml: batchsize is not a setting of the server; did you mean batchSize?",
    ]

    _, warnings = parse_model_config("torchrun: {nproc_per_node: 2, colour: red}")
    assert warnings == [
        "model-config.yaml: torchrun.nproc_per_node is not a known setting; did you mean nproc-per-node?",
        "model-config.yaml: torchrun.colour is not a known setting and is ignored",
    ]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("maxBatchDely", "maxBatchDelay"),
        ("responseTimeouts", "responseTimeout"),
        ("maxRetryTimeoutInSecs", "maxRetryTimeoutInSec"),
        ("clientTimeoutInMillis", "clientTimeoutInMills"),
        ("deviceId", "deviceIds"),
        ("MicroBatching", "micro_batching"),
        ("optimise", "optimize"),
    ],
)
def test_a_slip_of_the_pen_gets_the_nearest_known_key(key, meant):
    config, warnings = parse_model_config(f"{key}: 1")
    assert warnings == [f"model-config.yaml: {key} is not a setting of the server; did you mean {meant}?"]
    assert config == ModelConfig(raw={key: 1})


@pytest.mark.parametrize("key", sorted(HANDLER_KEYS))
def test_keys_of_handlers_are_handed_on_in_silence(key):
    text = f"{key}: {{a: [1, 2.5, null], b: {{c: yes}}}}"
    config, warnings = parse_model_config(text)
    assert warnings == []
    assert config.raw[key] == {"a": [1, 2.5, None], "b": {"c": True}}


def test_endless_keys_cost_no_time():
    """Thousands of unknown keys, and a very long one, are passed over (F60)."""
    text = "\n".join(f"batchSiz{n}: 1" for n in range(5000)) + f"\n{'batchSize' * 100}: 1"
    _, warnings = parse_model_config(text)
    assert len(warnings) < 300


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("{}", Torchrun(1)),
        ("{nproc-per-node: 4}", Torchrun(4)),
        ("{nproc-per-node: 2, OMP_NUMBER_THREADS: 3}", Torchrun(2, 3)),
        ("{nproc-per-node: 2, nnodes: 1, node-rank: 0}", Torchrun(2)),
        ("{nproc-per-node: 2, rdzv-backend: c10d, monitor-interval: 5}", Torchrun(2)),
        ('{nnodes: "1:1"}', Torchrun(1)),
    ],
)
def test_a_torchrun_block_says_how_many_processes(block, expected):
    """Its rendezvous has nothing to say on one machine (reference 9)."""
    config, warnings = parse_model_config(f"torchrun: {block}")
    assert config.torchrun == expected
    assert warnings == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "torchrun=3: a mapping is needed"),
        ("{nproc-per-node: two}", "torchrun.nproc-per-node=two: a whole number of at least 1 is needed"),
        ("{nproc-per-node: 0}", "torchrun.nproc-per-node=0: a whole number of at least 1 is needed"),
        ("{nproc-per-node: 9999}", f"torchrun.nproc-per-node=9999: at most {MAX_PROCESSES} is possible"),
        ("{OMP_NUMBER_THREADS: x}", "torchrun.OMP_NUMBER_THREADS=x: a whole number of at least 1 is needed"),
        ("{nnodes: 2}", "torchrun.nnodes=2: only 1 is possible, a worker runs on one machine"),
        ("{node-rank: 1}", "torchrun.node-rank=1: only 0 is possible, a worker runs on one machine"),
    ],
)
def test_a_torchrun_block_that_cannot_be_meant_is_refused(value, message):
    assert _refusal(f"torchrun: {value}") == f"model-config.yaml: {message}"


@pytest.mark.parametrize("key", [key for key in CONFIG_KEYS if key != "batcher"])
@pytest.mark.parametrize("value", ["{a: 1}", "[[]]", "word", "-1.5", "2001-01-01", "~"])
def test_every_value_is_used_or_refused(key, value):
    option = CONFIG_KEYS[key]
    if option.is_strict and value not in ("~", "{a: 1}" if key in {"torchrun", "traffic"} else ""):
        assert re.fullmatch(rf"model-config\.yaml: {key}=.* is needed", _refusal(f"{key}: {value}"))
        return
    config, warnings = parse_model_config(f"{key}: {value}")
    used = getattr(config, option.name)
    if value == "~":
        assert (used, warnings) == (None, [])
    elif key == "torchrun":
        assert used == Torchrun(1)
    elif (key, value) == ("traffic", "{a: 1}"):
        assert (used, warnings) == ({"a": 1}, [])
    else:
        assert used is None
        assert len(warnings) == 1
        assert warnings[0].startswith(f"model-config.yaml: {key}=")
        assert warnings[0].endswith("needed")


@pytest.mark.parametrize("block", ["batcher: {}", "batcher:"])
def test_an_empty_batcher_has_kserves_documented_numbers(block):
    """32 instances, 500 ms, 60 s."""
    config, _ = parse_model_config(block)
    assert config.batcher == Batcher(32, 500, 60, frozenset())


def test_a_batcher_is_a_mapping_of_single_keys_in_either_spelling():
    config, warnings = parse_model_config(
        'batcher: {max_batch_size: "16", maxLatency: 200, timeout: 5, port: 1}'
    )
    assert config.batcher == Batcher(16, 200, 5, frozenset({"max_batch_size", "max_latency", "timeout"}))
    assert warnings == ["model-config.yaml: batcher.port is not a known setting and is ignored"]

    assert "a mapping of maxBatchSize" in _refusal("batcher: [32]")
    assert "given in two spellings" in _refusal("batcher: {maxLatency: 1, max_latency: 2}")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "abc", "[]", '""', '"٣"'])
def test_a_batcher_refuses_what_is_no_positive_number(value):
    message = _refusal(f"batcher: {{maxLatency: {value}}}")
    assert message.startswith("model-config.yaml: batcher.maxLatency=")
    assert message.endswith(": a whole number from 1 to 2147483647 is needed")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1, 2\n", 3),
        ("a: 1\n\tb: 2", 2),
        ("a: 1\nb: \x00", 2),
        ("a: 1\n--- \nb: 2", 2),
        ("- 1\n- 2", 1),
        ("just text", 1),
    ],
)
def test_what_is_no_mapping_names_its_line(text, line):
    assert f"model-config.yaml: line {line}: " in _refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: !!python/object/apply:os.system ['true']",
        "a: 1\nb: !!python/name:os.system",
        "a: 1\nb: !!python/object:modelserver.errors.Conflict {}",
        "a: 1\nb: !custom 1",
    ],
)
def test_tags_are_refused(text):
    """Nothing but plain data is built (F60)."""
    message = _refusal(text)
    assert message.startswith("model-config.yaml: line 2: could not determine a constructor for the tag")
    assert message.endswith("only plain values are allowed, nothing that Python would have to build")


def test_documents_that_explode_are_refused():
    """Aliases of aliases, endless ones, bottomless nesting and numbers that take minutes: an error (F60)."""
    layers = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10))
    assert "more than 100000 values" in _refusal(f"l0: &l0 [1]\n{layers}")
    assert "more than 100000 values" in _refusal("a: &a [*a]")
    # The latter in the words of PyYAML from 6.0.4 on.
    assert re.search("cannot be read|maximum nesting depth", _refusal("a: " + "[" * 5000))

    assert "a number of 6001 characters" in _refusal("a: " + "1:" * 3000 + "1")


def test_merge_keys_work_and_do_not_explode():
    """Mappings merged into mappings end in an error, or have each key once, as from PyYAML 6.0.4 on (F60)."""
    lines = ["l0: &l0 {" + ", ".join(f"k{n}: 1" for n in range(10)) + "}"]
    lines += [f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 9)}]}}" for n in range(1, 8)]
    text = "\n".join(lines)

    assert len(text) < 1000
    try:
        config, _ = parse_model_config(text)
    except InvalidModel as error:
        assert "more than 100000 values" in str(error)  # noqa: PT017
    else:
        assert {len(mapping) for mapping in config.raw.values()} == {10}

    config, _ = parse_model_config("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}")

    assert config.raw["b"] == {"x": 1, "y": 3}


def test_a_key_costs_few_calls():
    text = "{" + ",".join(f"k{n}" for n in range(500)) + "}"
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        load_document(text, "x.yaml")
    finally:
        sys.setprofile(None)

    assert calls < 50 * 500


@pytest.mark.parametrize("text", ["a: 2001-99-99", "a: 0x", "a: " + "9" * 5000, "a: 1:99999999999999999999"])
def test_impossible_scalars_are_values_or_refusals(text):
    try:
        config, _ = parse_model_config(text)
    except InvalidModel:
        return
    assert "a" in config.raw


@given(st.text())
def test_any_text_is_a_config_or_a_refusal(text):
    """Fuzzed files end in a configuration or in InvalidModel (F70)."""
    try:
        config, warnings = parse_model_config(text)
    except InvalidModel as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert isinstance(config.raw, dict)
        assert all(isinstance(line, str) for line in warnings)
