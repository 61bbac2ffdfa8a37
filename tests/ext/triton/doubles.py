from types import SimpleNamespace

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.ext.triton.statistics import sum_batches
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.options.signature import Signature


def version(
    signature: Signature = Signature(),  # noqa: B008 - it never changes
    *,
    splits: bool = False,
    gpus: tuple[int | None, ...] = (None,),
    tensors: bool = True,
    **options,
):
    """A version `m` `1` with a worker for each of ``gpus``; ``splits``: of a built-in handler."""
    made = SimpleNamespace(
        name="m",
        version="1",
        signature=signature,
        envelope="",
        splits_tensors=tensors,
        options=ModelOptions(**options),
        pool=SimpleNamespace(splits=splits, workers=[SimpleNamespace(gpu=gpu) for gpu in gpus]),
        metrics=ServerMetrics().model("m", "1"),
    )
    sum_batches(made)
    return made
