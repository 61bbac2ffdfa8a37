"""KServe's batcher for all models of a server (``enable_batcher``), and what models say themselves."""

import pytest
from tests.models.options.conftest import resolve

from modelserver.models.options.resolve import (
    BATCHER_DEFAULT,
    COMMAND_LINE,
    CONFIG_FILE,
    MODELS_KEY,
    REGISTER,
    YAML,
    Registration,
)
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import KEYS

_ASPECTS = ("batcher", "batch_policy", "batch_size", "max_batch_delay", "request_timeout")
_SERVER = {
    "enable_batcher": True,
    "batcher_max_batch_size": 16,
    "batcher_max_latency": 250,
    "batcher_timeout": 30,
}


def _resolved(options):
    return {name: (getattr(options, name), options.sources[name]) for name in _ASPECTS}


def batched(source, size, delay, timeout):
    """What a model that says nothing is resolved to."""
    whole = {"batcher": (True, source), "batch_policy": ("window", source)}
    return {**whole, "batch_size": size, "max_batch_delay": delay, "request_timeout": timeout}


def test_it_is_a_block_for_every_model_unless_it_is_off():
    """Such a block has the server's numbers; documented are 32, 500 ms and 60 s (kserve reference 2.1)."""
    size, delay, timeout = ((number, BATCHER_DEFAULT) for number in (32, 500, 60))

    assert _resolved(resolve(**_SERVER)) == batched(
        CONFIG_FILE, (16, CONFIG_FILE), (250, CONFIG_FILE), (30, CONFIG_FILE)
    )
    assert _resolved(resolve(enable_batcher=True)) == batched(CONFIG_FILE, size, delay, timeout)

    off = resolve(**{**_SERVER, "enable_batcher": False})

    assert _resolved(off) == _resolved(resolve())
    assert off.batcher is False

    sources = {**dict.fromkeys(KEYS, "default"), "enable_batcher": "flag --enable-batcher"}
    sources["batcher_max_latency"] = "flag --max-latency"
    flags = resolve(sources=sources, enable_batcher=True, batcher_max_latency=7)

    assert _resolved(flags) == batched(COMMAND_LINE, size, (7, COMMAND_LINE), timeout)


@pytest.mark.parametrize(
    ("registration", "yaml", "fallback", "size", "delay"),
    [
        (Registration(batch_size=4, max_latency=9), "", None, (4, REGISTER), (9, REGISTER)),
        (Registration(max_batch_size=4), "", None, (4, REGISTER), (250, CONFIG_FILE)),
        (None, "batcher: {maxLatency: 9}", None, (16, CONFIG_FILE), (9, YAML)),
        (None, "batcher: {}", None, (16, CONFIG_FILE), (250, CONFIG_FILE)),
        (None, "batchSize: 4\nmaxBatchDelay: 9", None, (4, YAML), (9, YAML)),
        (None, "", ModelDefaults(batch_size=4), (4, MODELS_KEY), (250, CONFIG_FILE)),
    ],
)
def test_what_a_model_says_wins(registration, yaml, fallback, size, delay):
    result = _resolved(resolve(registration, yaml, fallback, **_SERVER))
    assert (result["batch_size"], result["max_batch_delay"]) == (size, delay)
    assert result["batch_policy"][0] == "window"


def test_a_policy_that_is_named_wins():
    assert resolve(None, "batchPolicy: greedy", **_SERVER).batch_policy == "greedy"
    assert resolve(**_SERVER, batch_policy="adaptive").batch_policy == "adaptive"
