"""Our package ``ts`` beside the public names of the real one, as they were recorded."""

import importlib
import json
from pathlib import Path

import pytest

from modelserver.tools.migrate.ts_names import LEFT_OUT
from modelserver_handlers.compat.offered import ABSENT

RECORDED = Path(__file__).parents[2] / "differential" / "recorded" / "ts_names.json"

# TorchServe's own tests, but for what they offer to tests of handlers, and a piece of what needs nvidia-dali.
_NOT_FOR_HANDLERS = ("ts.torch_handler.unit_tests.", "ts.handler_utils.preprocess.")
_FOR_TESTS = "ts.torch_handler.unit_tests.test_utils."
# Handlers never call this: it prints the line with which a worker of TorchServe reports a value.
_MEMBERS_LEFT_OUT = {"CachingMetric.emit_metrics"}


@pytest.mark.usefixtures("ts_names")
def test_every_public_name_of_torchserve_has_a_state():
    """It is there, or the table says why not; so is each public member of its classes (reference 13)."""
    recorded = json.loads(RECORDED.read_text("utf-8"))
    missing = []
    for module, names in recorded.items():
        if module in ABSENT or (module.startswith(_NOT_FOR_HANDLERS) and not module.startswith(_FOR_TESTS)):
            continue
        ours = importlib.import_module(module)
        for name, members in (names or {}).items():
            if f"{module}.{name}" in LEFT_OUT:
                continue
            result = getattr(ours, name, None)
            missing += [f"{module}.{name}"] if result is None else []
            there = set(dir(result)) | _MEMBERS_LEFT_OUT
            missing += [
                f"{module}.{name}.{member}"
                for member in (members or ())
                if result is not None and member not in there and f"{name}.{member}" not in there
            ]

    assert len(recorded) > 50
    assert missing == []
