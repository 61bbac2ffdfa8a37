"""A registered workflow, and the registrations of its nodes as ordinary models."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelserver.models.options.resolve import Registration
from modelserver.models.version import SavedWorkflow

if TYPE_CHECKING:
    from modelserver.ext.workflows.archive import WorkflowArchive
    from modelserver.ext.workflows.specification import NodeSpec, Specification

# TorchServe's default delay in ms for a node with a batch size.
_BATCH_DELAY = 50


@dataclass(slots=True, eq=False)
class Workflow:
    """``runs`` are the requests that it is answering, ``load`` the server's setting for models."""

    name: str
    archive: WorkflowArchive
    load: str = "at-start"
    runs: set[object] = field(default_factory=set)
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """The URL that the workflow was registered with."""
        return self.archive.url

    @property
    def specification(self) -> Specification:
        """The specification in the archive."""
        return self.archive.contents.specification

    def model_name(self, node: str) -> str:
        """The name of a node's model."""
        return f"{self.name}__{node}"

    def registration(self, node: NodeSpec, request: SavedWorkflow) -> Registration:
        """How a node is registered. What neither specification nor request says is up to the model's archive.

        A function's archive is the folder of this one, and its handler the function.
        """
        options, delay = node.options, node.options.max_batch_delay
        if delay is None and options.batch_size is not None:
            delay = _BATCH_DELAY
        function = not node.url
        return Registration(
            url=str(self.archive.folder) if function else node.url,
            model_name=self.model_name(node.name),
            handler=f"{self.archive.contents.handler}:{node.name}" if function else None,
            load=options.load,
            min_workers=options.workers(self.load),
            max_workers=options.max_workers,
            batch_size=options.batch_size,
            max_batch_delay=delay,
            response_timeout=request.response_timeout,
            startup_timeout=request.startup_timeout,
            trusted=function,
            workflow=self.name,
        )

    def add_run(self, run: object) -> None:
        """Adds a request that is being answered."""
        self.runs.add(run)
        self._quiet.clear()

    def remove_run(self, run: object) -> None:
        """Removes a request that has ended."""
        self.runs.discard(run)
        if not self.runs:
            self._quiet.set()

    async def settle(self, grace: float) -> None:
        """Waits at most ``grace`` seconds until it answers no request."""
        if self.runs:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), grace)
