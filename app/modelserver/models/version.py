"""One version of a model: its archive, how it is served, and the pool that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from modelserver.models.archive import ModelArchive
    from modelserver.models.options import ModelOptions
    from modelserver.telemetry.metrics import ModelMetrics
    from modelserver.workers.pool import Pool


@dataclass(slots=True)
class ModelVersion:
    """A registered version. ``url`` is what it was registered with, ``runtime`` what its manifest says."""

    name: str
    version: str
    url: str
    archive: ModelArchive
    options: ModelOptions
    runtime: str
    pool: Pool
    metrics: ModelMetrics
    loaded_at_startup: bool = False

    @property
    def batches(self) -> bool:
        """Whether V1 answers are in the batcher's form (design, section 9, "batchId and message")."""
        return self.options.batcher or self.options.batch_size > 1

    @property
    def splits(self) -> Literal["always", "auto", "never"]:
        """How V1 bodies are taken (design, section 9, "Rows"): ``auto`` is split if it looks like one."""
        asked = self.options.split_instances
        if asked == "false":
            return "never"
        if asked == "true" or self.options.batcher or self.pool.splits:
            return "always"
        return "auto"
