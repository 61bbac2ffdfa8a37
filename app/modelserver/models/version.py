"""One version of a model: its archive, how it is served, and the pool that serves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from modelserver.options.resolve import Registration

if TYPE_CHECKING:
    from modelserver.archives.archive import ModelArchive
    from modelserver.models.replacement import Replacement
    from modelserver.options.resolve import ModelOptions
    from modelserver.pools.pool import Pool
    from modelserver.telemetry.metrics import ModelMetrics
    from modelserver.wire.messages import SequenceHeaders


@dataclass(slots=True)
class ModelVersion:
    """A registered version. ``url`` is what it was registered with, ``runtime`` what its manifest says;
    ``registration`` are the parameters that it came with.

    ``sequence_headers``: its requests belong to sequences, which these headers name. ``envelope`` is the name
    of the one that its handler is in, if any. ``replacement``: what is to take its place, or could not.
    ``exposes_errors``: clients are told what went wrong in the handler.
    """

    name: str
    version: str
    url: str
    archive: ModelArchive
    options: ModelOptions
    runtime: str
    pool: Pool
    metrics: ModelMetrics
    loaded_at_startup: bool = False
    sequence_headers: SequenceHeaders | None = None
    envelope: str = ""
    registration: Registration = field(default_factory=Registration)
    replacement: Replacement | None = None
    exposes_errors: bool = False

    @property
    def batches(self) -> bool:
        """Whether V1 answers are in the batcher's form (design, section 9, "batchId and message")."""
        return self.options.batcher or self.options.batch_size > 1

    @property
    def splits(self) -> Literal["always", "never"]:
        """Whether V1 bodies are cut into instances (design, section 9, "Rows"); others are refused then."""
        return "never" if self.options.split_instances == "false" else "always"

    @property
    def splits_tensors(self) -> Literal["always", "never"]:
        """How V2 bodies are taken; an envelope gets them as they are, and knows what to make of them."""
        return "never" if self.envelope else self.splits


@dataclass(slots=True)
class FailedVersion(ModelVersion):
    """A version that a snapshot names and that could not be restored; ``failure`` says why."""

    failure: str = ""
