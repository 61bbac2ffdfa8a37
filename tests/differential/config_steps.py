"""model-config.yaml, key by key: what both servers make of it, and what ranks above and below it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.differential.calls import get, predict, register, unregister

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.differential.calls import Step

CONFIGS: Final[dict[str, str]] = {
    "nothing": "",
    "remark": "# nothing\n",
    "batch": "batchSize: 4\nmaxBatchDelay: 70\n",
    "batch_clamped": "batchSize: 0\nmaxBatchDelay: 0\n",
    "batch_words": "batchSize: four\nmaxBatchDelay: soon\n",
    "batch_negative": "batchSize: -2\nmaxBatchDelay: -5\n",
    "batch_text": 'batchSize: "4"\n',
    "batch_float": "batchSize: 4.0\n",
    "batch_null": "batchSize:\nmaxBatchDelay: 30\n",
    "times": "responseTimeout: 11\nstartupTimeout: 22\n",
    "times_zero": "responseTimeout: 0\nstartupTimeout: 0\n",
    "retry": "maxRetryTimeoutInSec: 5\n",
    "retry_never": "maxRetryTimeoutInSec: 0\n",
    "client": "clientTimeoutInMills: 1500\n",
    "queue": "jobQueueSize: 7\n",
    "queue_zero": "jobQueueSize: 0\n",
    "workers": "minWorkers: 1\nmaxWorkers: 2\n",
    "workers_min": "minWorkers: 2\n",
    "workers_max": "maxWorkers: 2\n",
    "workers_crossed": "minWorkers: 2\nmaxWorkers: 1\n",
    "cpu": "deviceType: cpu\n",
    "gpu": "deviceType: gpu\n",
    "neuron": "deviceType: neuron\n",
    "devices": "deviceIds: [0, 1]\n",
    "devices_words": "deviceIds: [a]\n",
    "parallel_type": "parallelType: pp\n",
    "parallel_odd": "parallelType: odd\n",
    "parallel_level": "parallelLevel: 2\n",
    "ticket": "useJobTicket: true\n",
    "ticket_text": 'useJobTicket: "true"\n',
    "sequences": (
        "sequenceBatching: true\nsequenceMaxIdleMSec: 5000\nsequenceTimeoutMSec: 9000\n"
        "maxNumSequence: 3\nmaxSequenceJobQueueSize: 4\n"
    ),
    "sequences_clamped": (
        "sequenceBatching: true\nsequenceMaxIdleMSec: 5000\nmaxNumSequence: 0\nmaxSequenceJobQueueSize: 0\n"
    ),
    "continuous": "continuousBatching: true\n",
    "asynchronous": "asyncCommunication: true\n",
    "own": "handler: {topk: 3}\nanything: [1, {a: b}]\n",
    "flow": "{batchSize: 3, maxBatchDelay: 9}\n",
    "twice": "batchSize: 3\nbatchSize: 5\n",
}
"""Documents by the names of the archives that hold them."""

TABLE: Final = {
    name: {
        "1.0": {
            "minWorkers": 1, "maxWorkers": 1, "batchSize": 6, "maxBatchDelay": 60,
            "responseTimeout": 66, "startupTimeout": 67,
        }
    }
    for name in ("c_batch", "c_times", "c_nothing", "plain")
}  # fmt: skip
"""The ``models=`` of the server that has one."""


def keys() -> Iterator[Step]:
    """Reference 9: each key by itself, as descriptions show it, and with parameters of the registration."""
    for name in CONFIGS:
        yield from _described(name, f"c_{name}", initial_workers=0)
    for name, model in (("silent", "c_nothing"), ("absent", "plain")):
        yield from _described(f"{name} and parameters", model, **_PARAMETERS)
    for name in ("batch", "times", "batch_words", "workers"):
        yield from _described(f"{name} and parameters", f"c_{name}", **_PARAMETERS)
    yield register("register the document", "c_own.mar")
    yield predict("the document", "c_own")
    yield unregister("unregister the document", "c_own")


def table() -> Iterator[Step]:
    """Reference 8.5, 8.6: what ``models=`` says counts for versions that say nothing themselves."""
    for model in TABLE:
        yield from _described(model, model, initial_workers=0)
        yield from _described(f"{model} and parameters", model, **_PARAMETERS)


_PARAMETERS: Final = {
    "initial_workers": 0, "batch_size": 9, "max_batch_delay": 90,
    "response_timeout": 33, "startup_timeout": 44,
}  # fmt: skip


def _described(name: str, model: str, **parameters: object) -> Iterator[Step]:
    yield register(f"register {name}", f"{model}.mar", **parameters)
    yield get(f"describe {name}", "management", f"/models/{model}")
    yield unregister(f"unregister {name}", model)


def settings() -> dict[str, str]:
    """Of the server with a table."""
    return {"enable_model_api": "true", "models": json.dumps(TABLE)}
