import pytest
from tests.models.settings.conftest import load

from modelserver.models.settings.settings import BATCHER, KEYS, NOT_YET, TLS, Settings


def is_without_effect(key):
    """Whether a setting has no effect if nothing else is set."""
    switches = ("enable_batcher",)
    return (
        key.is_for_java or key.name in NOT_YET or (key.group in (BATCHER, TLS) and key.name not in switches)
    )


def test_useless_keys_and_values_are_warned_of(tmp_path):
    """One line for what is not built and for what only Java needs; none for a switch left in its place."""
    loaded = load(tmp_path, "job_que_size=5\nzzz=1")
    assert loaded.warnings == (
        "job_que_size is not a known setting and is ignored; did you mean job_queue_size?",
        "zzz is not a known setting and is ignored",
    )

    loaded = load(tmp_path, 'models={"m": {"1": {"batchSize": 0}}}')
    assert loaded.warnings == ("models=m 1 batchSize=0 is ignored: a whole number above 0 is needed",)

    text = """
        cpu_launcher_enable=false
        number_of_netty_threads=32
        debug=false
        ipex_enable=true
        number_of_gpu=1
    """
    assert load(tmp_path, text).warnings == (
        "number_of_netty_threads has no effect: it is for TorchServe's Java server only",
        "ipex_enable has no effect yet",
    )
    assert load(tmp_path, "metrics_mode= Prometheus ").warnings == ()


@pytest.mark.parametrize(
    ("text", "names", "warning"),
    [
        (
            "",
            ["TS_JOB_QUEUE_SIZE", "TS_COMPAT_DEFAULTS", "TS_ALLOWED_URLS"],
            "TS_ALLOWED_URLS, TS_JOB_QUEUE_SIZE (the configuration file lacks enable_envvars_config=true)",
        ),
        (
            "enable_envvars_config=true",
            ["TS_JOB_QUEUE_SIZE", "TS_ALLOWED_URLS", "TS_OPEN_INFERENCE_PROTOCOL"],
            "TS_ALLOWED_URLS (the configuration file lacks use_env_allowed_urls=true)",
        ),
        (
            "enable_envvars_config=true",
            ["TS_JOB_QEUE_SIZE", "TS_NODE_X", "TS_MODELS", "MODELSERVER_X"],
            (
                "TS_JOB_QEUE_SIZE (no such setting; did you mean TS_JOB_QUEUE_SIZE?); "
                "TS_MODELS (only the configuration file sets it); TS_NODE_X (no such setting)"
            ),
        ),
        ("enable_envvars_config=true", ["TS_JOB_QUEUE_SIZE", "TSX", "HOME"], None),
    ],
    ids=["no consent", "no second consent", "misspelt", "all are read"],
)
def test_variables_that_are_ignored_are_warned_of(tmp_path, text, names, warning):
    environ = dict.fromkeys(names, "7") | {"TS_COMPAT_DEFAULTS": "modelserver"}
    expected = () if warning is None else (f"environment variables that are ignored: {warning}",)
    assert load(tmp_path, text, {}, environ).warnings == expected


NONSENSE = ("nonsense", "-1", "1e400", "9" * 30, "0x10", "a\0b", "[", "{", "/no/such/file", "\u2603")


@pytest.mark.parametrize("name", [key.name for key in KEYS.values() if is_without_effect(key)])
def test_no_value_of_a_key_without_effect_stops_a_start(tmp_path, name):
    """Keys for Java, of what is not built, of TLS without https, of a batcher that is off: from the file,
    the environment and a flag, a bad value is at most a warning.
    """
    key = KEYS[name]
    for value in NONSENSE:
        escaped = value.encode("latin-1", "backslashreplace").decode("latin-1")
        loads = [load(tmp_path, f"{name}={escaped}")]
        if key.env is not None and not key.is_ours:
            loads.append(load(tmp_path, "enable_envvars_config=true", environ={key.env: value}))
        if key.flag is not None:
            loads.append(load(tmp_path, "", {name: value}))
        for loaded in loads:
            refusals = [
                line for line in loaded.warnings if line.startswith(f"Invalid configuration: {name}=")
            ]
            assert len(refusals) <= 1
            if refusals:
                assert getattr(loaded.settings, name) == getattr(Settings(), name)
                assert refusals[0].endswith(f"; it is ignored, {name} has no effect here")
