"""One version of a model: its archive, how it is served, and the pool that serves it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from modelserver.options.resolve import Registration

if TYPE_CHECKING:
    from modelserver.archives.archive import ModelArchive
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


@dataclass(frozen=True, slots=True)
class SavedModel:
    """One version as it is to be registered again; ``default``: requests that name none go to it."""

    name: str
    version: str
    default: bool
    registration: Registration


def mar_name(model: ModelVersion) -> str:
    """The archive's file name in the store: of what was fetched, the file; its URL may hold secrets."""
    if model.archive.downloaded is not None:
        return model.archive.downloaded.name
    return model.url.partition("?")[0].rstrip("/").rpartition("/")[2]


@dataclass(slots=True)
class Replacement:
    """What is to take a version's place, and how far that is; the time is that of the last change."""

    url: str
    state: Literal["LOADING", "FAILED"] = "LOADING"
    version: str = ""
    failure: str = ""
    since: float = field(default_factory=time.time)

    def failed(self, reason: str) -> None:
        """The version itself goes on serving."""
        self.state, self.failure, self.since = "FAILED", reason, time.time()
