"""Documents model-config.yaml, key by key, and what ranks below them."""

import json
from pathlib import Path
from typing import Final

import yaml

CONFIGS: Final[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("configurations.yaml").read_text("utf-8")
)
"""Documents by the names of the archives that hold them."""

_BATCHES = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 6, "maxBatchDelay": 60}
_ONE = {"1.0": {**_BATCHES, "responseTimeout": 66, "startupTimeout": 67}}
TABLE: Final = dict.fromkeys(("c_batch", "c_times", "c_nothing", "plain"), _ONE)
"""The ``models=`` of the server that has one."""


def table_settings() -> dict[str, str]:
    return {"enable_model_api": "true", "models": json.dumps(TABLE)}
