"""model-config.yaml."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.errors import InvalidModel
from modelserver.models.config import Batcher, ModelConfig, parse_model_config


def _refusal(text: str) -> str:
    with pytest.raises(InvalidModel) as error:
        parse_model_config(text)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_reads_every_key() -> None:
    """All keys of reference 9 and our own are read, and the whole document is kept."""
    text = """
minWorkers: 1
maxWorkers: 2
batchSize: 4
maxBatchDelay: 50
responseTimeout: 10
startupTimeout: 20
deviceType: "gpu"
deviceIds: [0, 2]
parallelType: tp
parallelLevel: 2
torchrun: {nproc-per-node: 2}
maxRetryTimeoutInSec: 0
clientTimeoutInMills: 1500
jobQueueSize: 30
useJobTicket: true
useVenv: false
sequenceBatching: true
continuousBatching: false
asyncCommunication: true
sequenceMaxIdleMSec: 100
sequenceTimeoutMSec: 200
maxNumSequence: 3
maxSequenceJobQueueSize: 4
batchPolicy: Greedy
splitInstances: false
batcher: {maxBatchSize: 8}
handler: {profile: true}
"""
    config, warnings = parse_model_config(text)
    assert warnings == []
    assert config.raw["handler"] == {"profile": True}
    assert config == ModelConfig(
        min_workers=1,
        max_workers=2,
        batch_size=4,
        max_batch_delay=50,
        response_timeout=10,
        startup_timeout=20,
        device_type="gpu",
        device_ids=(0, 2),
        parallel_type="tp",
        parallel_level=2,
        torchrun={"nproc-per-node": 2},
        max_retry_timeout=0,
        client_timeout_ms=1500,
        job_queue_size=30,
        use_job_ticket=True,
        use_venv=False,
        sequence_batching=True,
        continuous_batching=False,
        async_communication=True,
        sequence_max_idle_ms=100,
        sequence_timeout_ms=200,
        max_num_sequence=3,
        max_sequence_job_queue_size=4,
        batch_policy="greedy",
        split_instances=False,
        batcher=Batcher(8, given=frozenset({"max_batch_size"})),
        raw=config.raw,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}"])
def test_an_empty_file_sets_nothing(text: str) -> None:
    """No file, no keys, no complaint."""
    assert parse_model_config(text) == (ModelConfig(), [])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("minWorkers", "min_workers"),
        ("batchSize", "batch_size"),
        ("maxNumSequence", "max_num_sequence"),
        ("maxSequenceJobQueueSize", "max_sequence_job_queue_size"),
    ],
)
def test_numbers_below_one_are_raised(key: str, name: str) -> None:
    """Where TorchServe clamps to 1, so do we, and say so."""
    config, warnings = parse_model_config(f"{key}: -3")
    assert getattr(config, name) == 1
    assert warnings == [f"model-config.yaml: {key}=-3: a whole number of at least 1 is needed, 1 is used"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("batchSize=many", "a whole number of at least 1 is needed"),
        ("batchSize=True", "a whole number of at least 1 is needed"),
        ("batchSize=4.0", "a whole number of at least 1 is needed"),
        ("maxBatchDelay=-1", "a whole number of at least 0 is needed"),
        ("responseTimeout=0", "a whole number of at least 1 is needed"),
        ("maxBatchDelay=99999999999999", "a whole number of at most 2147483647 is needed"),
        ("deviceType=neuron", "one of cpu, gpu is needed"),
        ("deviceIds=0", "a list of whole numbers is needed"),
        ("deviceIds=[0, -1]", "a whole number of at least 0 is needed"),
        ("parallelType=xp", "one of pp, tp, pptp, custom is needed"),
        ("useVenv=1", "true or false is needed"),
        ("torchrun=3", "a mapping is needed"),
    ],
)
def test_wrong_types_leave_the_default(line: str, reason: str) -> None:
    """A value that cannot be used is named in a warning and left out."""
    config, warnings = parse_model_config(line.replace("=", ": "))
    assert config == ModelConfig(raw=config.raw)
    assert warnings == [f"model-config.yaml: {line} is ignored: {reason}"]


def test_keys_that_differ_only_in_spelling_get_a_hint() -> None:
    """Everything else is the author's own."""
    _, warnings = parse_model_config("batch_size: 4\nmy_key: 1\nbatchsize: 3\n3: 4\n")
    assert warnings == [
        "model-config.yaml: batch_size is not a setting of the server; did you mean batchSize?",
        "model-config.yaml: batchsize is not a setting of the server; did you mean batchSize?",
    ]


@pytest.mark.parametrize("block", ["batcher: {}", "batcher:"])
def test_an_empty_batcher_has_kserves_documented_numbers(block: str) -> None:
    """32 instances, 500 ms, 60 s."""
    config, _ = parse_model_config(block)
    assert config.batcher == Batcher(32, 500, 60, frozenset())


def test_a_batcher_takes_both_spellings_and_numbers_as_text() -> None:
    """Settings of the sidecar can be copied as they are."""
    config, warnings = parse_model_config(
        'batcher: {max_batch_size: "16", maxLatency: 200, timeout: 5, port: 1}'
    )
    assert config.batcher == Batcher(16, 200, 5, frozenset({"max_batch_size", "max_latency", "timeout"}))
    assert warnings == ["model-config.yaml: batcher.port is not a known setting and is ignored"]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "abc", "[]", '""', '"٣"'])
def test_a_batcher_refuses_what_is_no_positive_number(value: str) -> None:
    """The message names key, value and what is needed."""
    message = _refusal(f"batcher: {{maxLatency: {value}}}")
    assert message.startswith("model-config.yaml: batcher.maxLatency=")
    assert message.endswith(": a whole number from 1 to 2147483647 is needed")


def test_a_batcher_is_a_mapping_of_single_keys() -> None:
    """No list, and no key in two spellings."""
    assert "a mapping of maxBatchSize" in _refusal("batcher: [32]")
    assert "given twice" in _refusal("batcher: {maxLatency: 1, max_latency: 2}")


def test_unknown_words_for_our_own_keys_are_refused() -> None:
    """A policy that does not exist is not passed over."""
    assert _refusal("batchPolicy: fast") == (
        "model-config.yaml: batchPolicy=fast: one of adaptive, greedy, window is needed"
    )
    assert "true, false or auto" in _refusal("splitInstances: perhaps")
    assert parse_model_config("splitInstances: auto")[0].split_instances is None


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
def test_what_is_no_mapping_names_its_line(text: str, line: int) -> None:
    """The author sees where to look."""
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
def test_tags_are_refused(text: str) -> None:
    """Nothing but plain data is built (F60)."""
    assert _refusal(text).startswith("model-config.yaml: line 2: could not determine a constructor")


def test_documents_that_explode_are_refused() -> None:
    """Aliases of aliases, endless ones and bottomless nesting end in an error (F60)."""
    layers = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10))
    assert "more than 100000 values" in _refusal(f"l0: &l0 [1]\n{layers}")
    assert "more than 100000 values" in _refusal("a: &a [*a]")
    assert "cannot be read" in _refusal("a: " + "[" * 5000)


@pytest.mark.parametrize("text", ["a: 2001-99-99", "a: 0x", "a: " + "9" * 5000, "a: 1:99999999999999999999"])
def test_impossible_scalars_are_values_or_refusals(text: str) -> None:
    """What PyYAML chokes on does not leave as another exception."""
    try:
        config, _ = parse_model_config(text)
    except InvalidModel:
        return
    assert "a" in config.raw


@given(st.text())
def test_any_text_is_a_config_or_a_refusal(text: str) -> None:
    """Fuzzed files end in a configuration or in InvalidModel (F70)."""
    try:
        config, warnings = parse_model_config(text)
    except InvalidModel as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert isinstance(config.raw, dict)
        assert all(isinstance(line, str) for line in warnings)
