import os
from functools import partial
from types import SimpleNamespace

from modelserver.engine.pools.spec import PoolStatistics, WorkerState
from modelserver.engine.pools.worker import Failures
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.messages import Loaded
from modelserver.models.version import ModelVersion

_COUNTED = (WorkerState.READY, WorkerState.LOADING, WorkerState.FAILED)


def worker(**changes):
    ready = {"id": 9000, "created": 1727877233.034, "state": WorkerState.READY, "pid": os.getpid()}
    ready |= {"gpu": None, "is_on_cpu": False, "process": None, "model": Loaded(), "most_rows": 0}
    return SimpleNamespace(**{**ready, "failure": "", "failures": Failures(), **changes})


def model(options, *workers, name="m", bounds=(1, 2), sequences=None):
    states = [each.state for each in workers]
    counts = {state.name.lower(): states.count(state) for state in WorkerState if state in _COUNTED}
    statistics = PoolStatistics(pending=3, capacity=100, instances=5, batches_in_flight=1, **counts)
    pool = SimpleNamespace(
        min_workers=bounds[0],
        max_workers=bounds[1],
        workers=list(workers),
        warnings=[],
        failing=False,
        statistics=lambda: statistics,
        limits=SimpleNamespace(max_requests=100),
        affinity=None if sequences is None else SimpleNamespace(statistics=sequences),
        crew=SimpleNamespace(autoscaling=None, on_demand=None, model=None),
        failure=next((each.failure for each in workers if each.failure), ""),
    )
    own = {"name": name, "version": "1.0", "url": f"{name}.mar", "runtime": "python", "failure": ""}
    own |= {"endpoints": {}, "loaded_at_startup": True, "replacement": None, "traffic": None}
    metrics = ServerMetrics().model(name, "1.0")
    made = SimpleNamespace(options=options, pool=pool, metrics=metrics, **own)
    made.read_gpus = partial(ModelVersion.read_gpus, made)
    return made
