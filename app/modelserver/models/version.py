"""One version of a model: its archive, its options, and the pool that serves it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.pool import Pool
from modelserver.engine.telemetry.gpus import gpus
from modelserver.engine.telemetry.model_metrics import ModelMetrics
from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.engine.wire.messages import Annotations, SequenceHeaders, Side
from modelserver.models.archives.archive import ModelArchive
from modelserver.models.options.resolve import ModelOptions, Registration
from modelserver.models.options.signature import Signature

# Which version of a model answers a request that names none: by itself, the default version.


class Router(Protocol):
    """Gives models their :class:`~modelserver.models.version.ModelRouter`; an extension sets one."""

    def check(self, document: Any) -> None:
        """Raises BadRequest for a document that no versions of a model could carry out. In any thread."""

    def direct(self, name: str, document: Any, reason: str = "") -> None:
        """Divides the requests for a model as the document says; None: as if it had never been divided.

        ``reason``: why what goes on by itself ends. Raises BadRequest for a document that the model's
        versions cannot carry out.
        """


class DefaultRouter:
    """Leaves all requests to the default versions."""

    def check(self, document: Any) -> None:
        """Accepts any document, which has no effect."""

    def direct(self, name: str, document: Any, reason: str = "") -> None:
        """Does nothing."""


class VersionHistory(Protocol):
    """What an extension has seen of a version; it passes to the version that replaces that one."""

    def replaced(self) -> None:
        """Another archive serves from now on."""


@dataclass(slots=True)
class ModelVersion:
    """A registered version. ``url`` and ``registration`` are what it was registered with.

    ``sequence_headers`` name the sequences that its requests belong to, if any. ``envelope`` is the name of
    the handler's envelope, if any. ``replacement``: a version that is replacing it, or failed to.
    ``exposes_errors``: clients see what went wrong in the handler. ``histories`` are what extensions have
    seen of it and of versions that it replaced, by name. ``traffic`` decides which version answers requests
    that name none; None: the default version does. All versions have the same. ``failure``: why a version of
    a snapshot could not be restored.
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
    histories: dict[str, VersionHistory] = field(default_factory=dict)
    traffic: ModelRouter | None = None
    failure: str = ""

    @property
    def mar_name(self) -> str:
        """The archive's file name in the store; for a download, the file, as its URL may contain secrets."""
        if self.archive.downloaded is not None:
            return self.archive.downloaded.name
        return self.url.partition("?")[0].rstrip("/").rpartition("/")[2]

    @property
    def batches(self) -> bool:
        """Whether V1 responses have the batcher's form (design, section 9, "batchId and message")."""
        return self.options.batcher or self.options.batch_size > 1

    @property
    def annotations(self) -> Annotations | None:
        """What the annotations of the loaded handler say, None if it has none, or no worker has loaded it."""
        return None if self.pool.crew.model is None else self.pool.crew.model.annotations

    @property
    def endpoints(self) -> dict[str, bool]:
        """The routes of OpenAI's API that it serves, and whether each input is a row; empty before a load."""
        return {} if self.pool.crew.model is None else self.pool.crew.model.endpoints

    async def read_gpus(self) -> None:
        """Takes new readings of the GPUs, if its workers use any, before it is described."""
        if any(worker.gpu is not None for worker in self.pool.workers):
            await gpus.renew()

    @property
    def signature(self) -> Signature:
        """Its inputs and outputs: as declared in model-config.yaml, else as the handler is annotated."""
        declared, annotations = self.options.signature, self.annotations
        if annotations is None:
            return declared
        return Signature(
            declared.inputs or _specs(annotations.inputs), declared.outputs or _specs(annotations.outputs)
        )

    @property
    def splits(self) -> bool:
        """Whether V1 bodies are split into instances (design, section 9, "Rows")."""
        return self.options.split_instances != "false"

    @property
    def splits_tensors(self) -> bool:
        """Whether V2 bodies are split into rows; an envelope gets them whole."""
        return self.splits and not self.envelope


class Headed(Protocol):
    """A request with headers."""

    @property
    def headers(self) -> Iterable[tuple[bytes, bytes]]:
        """Names, in any case, and values."""


class ModelRouter(Protocol):
    """Decides which version of a model answers a request that names none.

    ``watches``: whether :meth:`watch` is to be called. ``state`` is kept in snapshots.
    """

    watches: bool

    @property
    def ready(self) -> bool:
        """Whether any version that gets requests has a ready worker."""

    @property
    def state(self) -> dict[str, Any]:
        """Returns a document for :meth:`~modelserver.models.version.Router.direct`, or an empty one."""

    def choose(self, request: Headed) -> ModelVersion:
        """The version that answers the request."""

    def home(self, sequence_id: str, chosen: ModelVersion) -> ModelVersion:
        """The version that has the state of a sequence, else the one for a new sequence with this id."""

    def watch(self, request: Request, version: ModelVersion) -> None:
        """Called before a request is queued for the version."""

    def refused(self, version: ModelVersion, status: int) -> None:
        """A request for this version was answered with this status before it was queued."""

    def describe(self, version: str) -> dict[str, Any]:
        """The part of a version, for its description."""

    def follow(
        self, versions: Mapping[str, ModelVersion], default: str, moved: tuple[str, str] | None = None
    ) -> None:
        """The versions of the model have changed; ``moved``: one was replaced by one of another name."""

    def send_all(self, reason: str) -> None:
        """The default version gets all requests from now on."""

    def close(self) -> None:
        """Another router takes over, or the model is gone."""


def _specs(side: Side) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(spec.name, spec.datatype, spec.shape) for spec in side.tensors)


class SavedWorkflow(NamedTuple):
    """How a workflow was registered: seconds that workers of its nodes may take for a batch, and to load;
    None: that is up to the models. ``nodes``, by the names of their models, are of a snapshot: the
    ``defaultVersion``, and the ``traffic`` between all. ``downloaded``: the server fetched its archive.
    """

    url: str
    response_timeout: int | None = None
    startup_timeout: int | None = None
    nodes: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    downloaded: bool = False


@dataclass(slots=True)
class Replacement:
    """A version's replacement and its state; ``since`` is the time of the last change."""

    url: str
    state: Literal["LOADING", "FAILED"] = "LOADING"
    version: str = ""
    failure: str = ""
    since: float = field(default_factory=time.time)

    def failed(self, reason: str) -> None:
        """Records a failure; the version itself keeps serving."""
        self.state, self.failure, self.since = "FAILED", reason, time.time()
