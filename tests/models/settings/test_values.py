import re
from dataclasses import replace

import pytest
from tests.models.settings.conftest import load, refusal_of

from modelserver.models.settings.address import Address
from modelserver.models.settings.key import property_text
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import Settings
from modelserver.models.settings.values import ModelToLoad


def test_values_are_read_from_texts():
    assert [property_text(value) for value in (None, True, (), {}, 3)] == ["", "true", "", "", "3"]


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), (" AUTO ", "auto"), ("1", 1), ("64", 64)])
def test_number_of_front_ends_is_parsed(tmp_path, text, value):
    """frontend_processes is a number or the word auto."""
    assert load(tmp_path, f"frontend_processes={text}").settings.frontend_processes == value


@pytest.mark.parametrize(("former", "now"), [("KFServing", "kserve"), ("kfservingv2", "kservev2")])
def test_envelopes_former_names_are_known(tmp_path, former, now):
    """Files from the time when KServe was KFServing."""
    assert load(tmp_path, f"service_envelope={former}").settings.service_envelope == now


@pytest.mark.parametrize("text", ["0", "65", "many", "2.5", "-1", ""])
def test_counts_that_are_none(tmp_path, text):
    refusal = refusal_of(tmp_path, f"frontend_processes={text}")
    assert f"frontend_processes={text}: auto, or a whole number from 1 to 64 is needed" in refusal


def test_values_are_typed(tmp_path):
    """Each kind of key becomes a value of its type; paths are absolute."""
    (tmp_path / "store").mkdir()
    loaded = load(
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
        sets_allowed_urls=True,
        blacklist_env_vars=re.compile(".*SECRET.*"),
        job_queue_size=7,
        silence_timeout=0.5,
        decode_input_request=False,
        batch_policy="greedy",
        number_of_gpu=1,
    )
    assert loaded.warnings == ("decode_input_request=no counts as false: only the word true is true",)
    assert loaded.config_file == tmp_path / "config.properties"


def test_addresses_without_port_have_torchserves(tmp_path):
    """80, 8081 and 8082 stand in for a missing port."""
    text = "".join(f"{side}_address=http://localhost\n" for side in ("inference", "management", "metrics"))
    result = load(tmp_path, text).settings
    ports = (result.inference_address.port, result.management_address.port, result.metrics_address.port)
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
def test_all_and_standalone_are_words(tmp_path, text, load_all, count):
    """``all`` counts only when it is the whole value; ``standalone`` loads nothing."""
    result = load(tmp_path, f"load_models={text}").settings
    assert result.load_all is load_all
    assert len(result.load_models) == count
