import pytest

from modelserver.engine.telemetry.logs import log_level
from modelserver.errors import BadRequest
from modelserver.ext.triton import switches


@pytest.fixture(autouse=True)
def _level():
    before = log_level()
    log_level("info")
    yield
    log_level(before)


@pytest.mark.parametrize(
    "changes", [{}, {"trace_level": ["OFF"]}, {"trace_level": "OFF"}, {"trace_level": None, "trace_rate": []}]
)
def test_traces_stay_off(changes):
    """Requests may turn tracing off and clear its settings."""
    assert switches.change_trace_settings(changes) == switches.trace_settings() == {"trace_level": ["OFF"]}


@pytest.mark.parametrize("changes", [{"trace_level": ["TIMESTAMPS"]}, {"trace_rate": "1"}, {"x" * 99: "1"}])
def test_traces_are_refused(changes):
    with pytest.raises(BadRequest, match=f"^{next(iter(changes))[:40]}: this server has no Triton traces"):
        switches.change_trace_settings(changes)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "info"),
        ({"log_verbose_level": 3}, "debug"),
        ({"log_verbose_level": 0}, "info"),
        ({"log_info": False}, "warn"),
        ({"log_info": False, "log_warning": False}, "error"),
        ({"log_error": True, "log_file": "", "log_format": "default"}, "info"),
    ],
)
def test_log_level_is_set(changes, level):
    settings = switches.change_log_settings(changes)

    assert log_level() == level
    assert settings == switches.log_settings()
    assert settings["log_verbose_level"] == (1 if level == "debug" else 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log_error": False}, "log_error is always True"),
        ({"log_file": "/tmp/x"}, "log_file is always ''"),
        ({"log_format": "ISO8601"}, "log_format is always 'default'"),
        ({"log_info": 1}, "log_info: true or false"),
        ({"log_warning": None}, "log_warning: true or false"),
        ({"log_verbose_level": -1}, "log_verbose_level: a whole number"),
        ({"log_verbose_level": True}, "log_verbose_level: a whole number"),
        ({"log_everything": True}, "log_everything: there is no such setting"),
        ({"log_warning": False}, "log_info needs log_warning"),
        ({"log_verbose_level": 1, "log_info": False}, "log_verbose_level needs log_info"),
    ],
)
def test_impossible_setting_is_refused(changes, reason):
    with pytest.raises(BadRequest, match=reason):
        switches.change_log_settings(changes)
    assert log_level() == "info"
