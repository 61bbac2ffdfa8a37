"""From flags, environment and config.properties to Settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelserver.errors import ConfigError
from modelserver.settings.address import Address
from modelserver.settings.keys import KEYS
from modelserver.settings.load import LoadedSettings, explain, load_settings
from modelserver.settings.model_defaults import ModelDefaults
from modelserver.settings.settings import Settings
from modelserver.settings.values import ModelToLoad

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _load(
    tmp_path: Path,
    text: str | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    if text is not None:
        (tmp_path / "config.properties").write_text(text)
    return load_settings(flags or {}, environ or {}, tmp_path)


def _refusal(tmp_path: Path, text: str, flags: Mapping[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        _load(tmp_path, text, flags)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_nothing_given_is_all_defaults(tmp_path: Path) -> None:
    """Without file, flags and variables every value is its default and nothing is warned of."""
    loaded = _load(tmp_path)
    assert loaded == LoadedSettings(Settings(), dict.fromkeys(KEYS, "default"), (), None)


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), (" AUTO ", "auto"), ("1", 1), ("64", 64)])
def test_counts(tmp_path: Path, text: str, value: int | str) -> None:
    """frontend_processes is a number or the word auto."""
    assert _load(tmp_path, f"frontend_processes={text}").settings.frontend_processes == value


@pytest.mark.parametrize("text", ["0", "65", "many", "2.5", "-1", ""])
def test_counts_that_are_none(tmp_path: Path, text: str) -> None:
    """Anything else is refused with what is allowed."""
    refusal = _refusal(tmp_path, f"frontend_processes={text}")

    assert f"frontend_processes={text}: auto, or a whole number from 1 to 64 is needed" in refusal


def test_values_are_typed(tmp_path: Path) -> None:
    """Each kind of key becomes a value of its type; paths are absolute."""
    (tmp_path / "store").mkdir()
    loaded = _load(
        tmp_path,
        """
        inference_address=http://0.0.0.0
        management_address=unix:/run/m.sock
        model_store=store
        load_models=a.mar, b=c.mar ,, =d.mar
        models={"noop": {"1.0": {"batchSize": 4}}}
        allowed_urls=https://a/.*, https://b/.*
        blacklist_env_vars=.*SECRET.*
        job_queue_size= 7\t
        silence_timeout=0.5
        decode_input_request=no
        enable_metrics_api=TRUE
        batch_policy=Greedy
        number_of_gpu=1
        """,
    )
    assert loaded.settings == replace(
        Settings(),
        inference_address=Address("http", "0.0.0.0", 80),
        management_address=Address("unix", path="/run/m.sock"),
        model_store=tmp_path / "store",
        workflow_store=tmp_path / "store",
        load_models=(ModelToLoad("a.mar"), ModelToLoad("c.mar", "b"), ModelToLoad("d.mar")),
        models={"noop": {"1.0": ModelDefaults(batch_size=4)}},
        allowed_urls=(re.compile("https://a/.*", re.I), re.compile("https://b/.*", re.I)),
        allowed_urls_given=True,
        blacklist_env_vars=re.compile(".*SECRET.*"),
        job_queue_size=7,
        silence_timeout=0.5,
        decode_input_request=False,
        batch_policy="greedy",
        number_of_gpu=1,
    )
    assert loaded.warnings == ("decode_input_request=no counts as false: only the word true is true",)
    assert loaded.config_file == tmp_path / "config.properties"


def test_addresses_without_port_have_torchserves(tmp_path: Path) -> None:
    """80, 8081 and 8082 stand in for a missing port."""
    text = "".join(f"{side}_address=http://localhost\n" for side in ("inference", "management", "metrics"))
    found = _load(tmp_path, text).settings
    ports = (found.inference_address.port, found.management_address.port, found.metrics_address.port)
    assert ports == (80, 8081, 8082)


@pytest.mark.parametrize(
    ("text", "load_all", "count"),
    [
        ("all", True, 1),
        ("ALL", True, 1),
        ("all,a.mar", False, 2),
        ("standalone", False, 0),
        ("a=all", False, 1),
    ],
)
def test_all_and_standalone_are_words(tmp_path: Path, text: str, load_all: bool, count: int) -> None:
    """``all`` counts only when it is the whole value; ``standalone`` loads nothing."""
    found = _load(tmp_path, f"load_models={text}").settings
    assert found.load_all is load_all
    assert len(found.load_models) == count


def test_environment_beats_flags_beats_file(tmp_path: Path) -> None:
    """The order of reference 2.4, with the source of each value."""
    text = "enable_envvars_config=true\njob_queue_size=1\nmax_request_size=1\nload_models=file.mar\n"
    flags = {"load_models": "flag.mar", "disable_token_authorization": True}
    environ = {"TS_LOAD_MODELS": "env.mar", "TS_MAX_REQUEST_SIZE": "2", "TS_MODELS": "ignored"}
    loaded = _load(tmp_path, text, flags, environ)
    found, sources = loaded.settings, loaded.sources
    assert (found.load_models, sources["load_models"]) == (
        (ModelToLoad("env.mar"),),
        "environment TS_LOAD_MODELS",
    )
    assert (found.max_request_size, sources["max_request_size"]) == (2, "environment TS_MAX_REQUEST_SIZE")
    assert (found.job_queue_size, sources["job_queue_size"]) == (1, str(tmp_path / "config.properties"))
    assert found.disable_token_authorization
    assert sources["disable_token_authorization"] == "flag --disable-token-auth"
    assert sources["max_response_size"] == "default"


def test_environment_needs_the_files_consent(tmp_path: Path) -> None:
    """Without enable_envvars_config=true in the file, TS_ variables are not read."""
    assert _load(tmp_path, "", {}, {"TS_JOB_QUEUE_SIZE": "5"}).settings.job_queue_size == 100
    flags = {"enable_envvars_config": False}
    assert _load(tmp_path, "", flags, {"TS_JOB_QUEUE_SIZE": "5"}).settings.job_queue_size == 100


def test_allowed_urls_from_the_environment_need_a_second_consent(tmp_path: Path) -> None:
    """use_env_allowed_urls guards TS_ALLOWED_URLS."""
    environ = {"TS_ALLOWED_URLS": "https://a/.*"}
    text = "enable_envvars_config=true\n"
    assert not _load(tmp_path, text, {}, environ).settings.allowed_urls_given
    found = _load(tmp_path, text + "use_env_allowed_urls=true\n", {}, environ).settings
    assert found.allowed_urls_given
    assert found.allowed_urls == (re.compile("https://a/.*", re.I),)


def test_the_default_allowed_urls_written_out_permit_nothing_more(tmp_path: Path) -> None:
    """Copying the default line does not open private targets (F62)."""
    assert not _load(tmp_path, "allowed_urls=file://.*|http(s)?://.*").settings.allowed_urls_given


@pytest.mark.parametrize(("value", "expected"), [("oip", True), ("no", False), ("", True)])
def test_open_inference_variable_is_always_read(tmp_path: Path, value: str, expected: bool) -> None:
    """TS_OPEN_INFERENCE_PROTOCOL needs no consent: oip is on, other words off, empty leaves the file's."""
    loaded = _load(tmp_path, "ts_open_inference_protocol=true", {}, {"TS_OPEN_INFERENCE_PROTOCOL": value})
    assert loaded.settings.ts_open_inference_protocol is expected


def test_false_flags_are_not_given(tmp_path: Path) -> None:
    """Boolean flags can only switch on, and flags that are no settings are passed over."""
    flags = {
        "disable_token_authorization": False,
        "model_store": None,
        "foreground": True,
        "no_config_snapshots": True,
    }
    assert _load(tmp_path, "disable_token_authorization=true", flags).settings.disable_token_authorization


def test_the_files_name_comes_from_variable_flag_or_folder(tmp_path: Path) -> None:
    """TS_CONFIG_FILE beats --ts-config beats ./config.properties (reference 3.1)."""
    for number, name in enumerate(["config.properties", "flag.properties", "env.properties"], start=1):
        (tmp_path / name).write_text(f"job_queue_size={number}")
    flags = {"ts_config": "flag.properties"}
    environ = {"TS_CONFIG_FILE": str(tmp_path / "env.properties")}
    assert _load(tmp_path).settings.job_queue_size == 1
    assert _load(tmp_path, None, flags).settings.job_queue_size == 2
    assert _load(tmp_path, None, flags, environ).settings.job_queue_size == 3
    assert _load(tmp_path, None, flags, {"TS_CONFIG_FILE": ""}).config_file == tmp_path / "flag.properties"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The message is TorchServe's."""
    with pytest.raises(ConfigError, match=r"^--ts-config file not found: nope.properties$"):
        _load(tmp_path, None, {"ts_config": "nope.properties"})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's reason is shown."""

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "read_bytes", refuse)
    path = tmp_path / "config.properties"
    assert _refusal(tmp_path, "") == f"Invalid configuration: {path}: cannot be read (Permission denied)"


def test_a_list_of_models_may_be_a_flag(tmp_path: Path) -> None:
    """Items of --models are joined; a workflow store of its own is kept."""
    (tmp_path / "flows").mkdir()
    loaded = _load(tmp_path, None, {"load_models": ["a.mar", "b=c.mar"], "workflow_store": "flows"})
    assert loaded.settings.load_models == (ModelToLoad("a.mar"), ModelToLoad("c.mar", "b"))
    assert loaded.settings.workflow_store == tmp_path / "flows"
    assert loaded.warnings == ("workflow_store has no effect: it is for TorchServe's workflows only",)


def test_variables_inside_values_are_replaced(tmp_path: Path) -> None:
    """$$NAME$$ works without enable_envvars_config; an unset one stops the start."""
    loaded = _load(tmp_path, "job_queue_size=$$SIZE$$", {}, {"SIZE": "9"})
    assert loaded.settings.job_queue_size == 9
    assert _refusal(tmp_path, "x=$$SIZE$$") == "Invalid configuration: Invalid Environment Variable SIZE"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("job_queue_size=abc", "a whole number of at least 1 is needed"),
        ("job_queue_size=0", "a whole number of at least 1 is needed"),
        ("job_queue_size=", "a whole number of at least 1 is needed"),
        ("job_queue_size=1.5", "a whole number of at least 1 is needed"),
        ("default_response_timeout=-1", "a whole number of at least 1 is needed"),
        ("drain_timeout=nan", "a number of at least 0 is needed"),
        ("silence_timeout=soon", "a number of at least 0.1 is needed"),
        ("model_snapshot=1", "a JSON object is needed"),
        ("grpc_inference_port=70000", "a whole number from 0 to 65535 is needed"),
        (
            "inference_address=127.0.0.1",
            "Invalid binding address: 127.0.0.1: http[s]://host[:port] or unix:/path is needed",
        ),
        (
            "metrics_address=http://h:65535",
            "Invalid port number: http://h:65535: http[s]://host[:port] or unix:/path is needed",
        ),
        ("metrics_mode=cloud", "one of log, prometheus, legacy is needed"),
        ("service_envelope=xml", "one of body, json, kserve, kservev2 is needed"),
        ("batch_policy=fast", "one of adaptive, greedy, window is needed"),
        ("split_instances=maybe", "one of auto, true, false is needed"),
        ("model_store=nope", "an existing directory is needed"),
        ("certificate_file=nope.pem", "an existing file is needed"),
        ("private_key_file=nope.pem", "an existing file is needed"),
        ("keystore=nope.p12", "an existing file is needed"),
        ("model_snapshot=[]", "a JSON object is needed"),
    ],
)
def test_refusals_name_key_value_and_what_is_allowed(tmp_path: Path, line: str, reason: str) -> None:
    """One line says all, and where it stands in the file (F66 for the certificate files)."""
    where = f"({tmp_path / 'config.properties'}, line 3)"
    text = f"# one\nmetrics_address=https://127.0.0.1:8082\n{line}"
    assert _refusal(tmp_path, text) == f"Invalid configuration: {line}: {reason} {where}"


@pytest.mark.parametrize(
    "line", ["blacklist_env_vars=(", "allowed_urls=https://a/.*,*", "models={", "model_snapshot={"]
)
def test_refusals_of_patterns_and_json_say_what_is_wrong(tmp_path: Path, line: str) -> None:
    """The parser's own words stand in brackets."""
    assert re.fullmatch(
        rf"Invalid configuration: {re.escape(line)}: .* is needed \(.+\) \(.+, line 1\)",
        _refusal(tmp_path, line),
    )


def test_a_deep_models_value_is_refused(tmp_path: Path) -> None:
    """JSON nested 100 000 deep is an error of one short line (F3)."""
    message = _refusal(tmp_path, "models=" + "[" * 100_000)
    assert len(message) < 700


def test_a_missing_folder_from_a_flag_is_named_as_torchserve_does(tmp_path: Path) -> None:
    """The launcher's message of reference 2.1."""
    assert _refusal(tmp_path, "", {"model_store": "nope"}) == "--model-store directory not found: nope"


def test_java_keystores_are_refused(tmp_path: Path) -> None:
    """JKS cannot be read without Java, and the message says what to do."""
    message = _refusal(tmp_path, "inference_address=https://127.0.0.1:8443\nkeystore_type=JKS")
    assert message.startswith("Invalid configuration: keystore_type=JKS: only PKCS12 can be read")


def test_https_addresses_are_read(tmp_path: Path) -> None:
    """Ports that are not named are TorchServe's for https."""
    found = _load(
        tmp_path, "inference_address=https://0.0.0.0\nmanagement_address=https://127.0.0.1"
    ).settings
    assert str(found.inference_address) == "https://0.0.0.0:443"
    assert str(found.management_address) == "https://127.0.0.1:8444"


@pytest.mark.parametrize("given", ["private_key_file", "certificate_file"])
def test_half_a_pair_is_refused(tmp_path: Path, given: str) -> None:
    """A key without a certificate, or the other way round, is named (F66)."""
    (tmp_path / "file.pem").write_text("")
    missing = ({"private_key_file", "certificate_file"} - {given}).pop()
    text = f"management_address=https://127.0.0.1:8444\n{given}=file.pem"
    assert _refusal(tmp_path, text).startswith(f"Invalid configuration: {missing}=: ")


def test_one_port_has_one_scheme(tmp_path: Path) -> None:
    """An address is served in the clear or over TLS, not both."""
    text = "inference_address=https://127.0.0.1:8080\nmanagement_address=http://127.0.0.1:8080"
    message = _refusal(tmp_path, text)
    assert message == (
        "Invalid configuration: management_address=http://127.0.0.1:8080: "
        "inference_address has the same host and port over https"
    )


@pytest.mark.parametrize(
    "text",
    [
        "management_address=http://0.0.0.0:8081",
        "management_address=http://0.0.0.0:8081\ndisable_token_authorization=true",
        "inference_address=http://10.0.0.1:80\nmanagement_address=http://10.0.0.1:80",
    ],
)
def test_management_may_be_open(tmp_path: Path, text: str) -> None:
    """Off loopback tokens are asked for, unless a key says otherwise: nothing is refused (F63)."""
    assert not _load(tmp_path, text).settings.management_address.is_loopback


def test_tokens_do_not_expire_unless_asked(tmp_path: Path) -> None:
    """token_expiration_min is empty by default, and may be a fraction."""
    assert _load(tmp_path, "").settings.token_expiration_min is None
    assert _load(tmp_path, "token_expiration_min=0.25").settings.token_expiration_min == 0.25


def test_unknown_keys_are_warned_of_with_a_guess(tmp_path: Path) -> None:
    """A typing mistake costs a line, not the start."""
    loaded = _load(tmp_path, "job_que_size=5\nzzz=1")
    assert loaded.warnings == (
        "job_que_size is not a known setting and is ignored; did you mean job_queue_size?",
        "zzz is not a known setting and is ignored",
    )


def test_keys_without_effect_are_warned_of(tmp_path: Path) -> None:
    """One line for what is not built and for what only Java needs; none for a switch left in its place."""
    text = """
        workflow_store=.
        cpu_launcher_enable=false
        number_of_netty_threads=32
        debug=false
        ipex_enable=true
        number_of_gpu=1
    """
    assert _load(tmp_path, text).warnings == (
        "workflow_store has no effect: it is for TorchServe's workflows only",
        "number_of_netty_threads has no effect: it is for TorchServe's Java server only",
        "ipex_enable has no effect yet",
    )
    assert _load(tmp_path, "metrics_mode= Prometheus ").warnings == ()


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("number_of_netty_threads=many", ": a whole number of at least 0 is needed"),
        ("certificate_file=nope.pem", ": an existing file is needed"),
        ("keystore=nope.p12", ": an existing file is needed"),
    ],
)
def test_what_has_no_effect_stops_no_start(tmp_path: Path, line: str, rest: str) -> None:
    """A bad value of a key for Java, or for TLS that no address asks for, is one warning."""
    loaded = _load(tmp_path, line)
    name = line.partition("=")[0]
    assert getattr(loaded.settings, name) == getattr(Settings(), name)
    (warning,) = loaded.warnings
    assert warning.startswith(f"Invalid configuration: {line}{rest.replace(' of at least 0', '')}")
    assert warning.endswith(f"; it is ignored, {name} has no effect here")


def test_a_workflow_store_need_not_exist(tmp_path: Path) -> None:
    """Nothing is ever read from it: TorchServe's own image names a folder that it does not have."""
    for flags, text in (({"workflow_store": "/no/wf-store"}, ""), ({}, "workflow_store=/no/wf-store")):
        assert _load(tmp_path, text, flags).warnings == (
            "workflow_store has no effect: it is for TorchServe's workflows only",
        )


@pytest.mark.parametrize("line", ["keystore_type=JKS", "private_key_file=config.properties"])
def test_tls_is_checked_where_it_is_used(tmp_path: Path, line: str) -> None:
    """Without an https address a keystore of Java and half a pair hurt nobody."""
    assert _load(tmp_path, line).config_file is not None


def test_models_values_without_use_are_warned_of(tmp_path: Path) -> None:
    """A fallback that cannot be meant is named."""
    loaded = _load(tmp_path, 'models={"m": {"1": {"batchSize": 0}}}')
    assert loaded.warnings == ("models=m 1 batchSize=0 is ignored: a whole number above 0 is needed",)


def test_explain_shows_every_key_and_hides_secrets(tmp_path: Path) -> None:
    """A line per key with its source; the keystore's password stays hidden (F68)."""
    loaded = _load(tmp_path, "keystore_pass=hunter2\njob_queue_size=5", {"load_models": "a.mar,b=c.mar"})
    lines = explain(loaded).splitlines()
    path = tmp_path / "config.properties"
    assert lines[0] == f"config file: {path}"
    assert len(lines) == len(KEYS) + 1
    assert f"job_queue_size = 5 ({path})" in lines
    assert "load_models = a.mar,b=c.mar (flag --models)" in lines
    assert f"keystore_pass = ******** ({path})" in lines
    assert "inference_address = http://127.0.0.1:8080 (default)" in lines
    assert "enable_model_api = true (default)" in lines
    assert "allowed_urls = file://.*|http(s)?://.* (default)" in lines
    assert "models =  (default)" in lines
    assert "hunter2" not in explain(loaded) + repr(loaded)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.text())
def test_any_text_is_a_value_or_a_refusal(tmp_path: Path, name: str, text: str) -> None:
    """Fuzzed values end in settings or in ConfigError of one line (F70)."""
    try:
        load_settings({name: text}, {}, tmp_path)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ({}, True),
        ({"inference_address": "unix:/run/model.sock"}, True),
        ({"inference_address": "http://0.0.0.0:8080"}, False),
        ({"grpc_inference_address": "0.0.0.0"}, False),
        ({"grpc_inference_address": "0.0.0.0", "enable_grpc_api": "false"}, True),
        ({"inference_address": "http://0.0.0.0:8080", "expose_errors": "true"}, True),
        ({"expose_errors": "false"}, False),
        ({"compat_defaults": "torchserve"}, False),
    ],
)
def test_who_is_told_of_errors(lines: dict[str, str], shown: bool, tmp_path: Path) -> None:
    """By default clients of this machine alone, and nobody under TorchServe's defaults."""
    (tmp_path / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    flags = {"ts_config": str(tmp_path / "config.properties")}

    assert load_settings(flags, {}, tmp_path).settings.shows_errors == shown
