"""Workflows: requests that go through several models."""

from __future__ import annotations

from functools import partial

from modelserver.ext.workflows.errors import WorkflowNotFound
from modelserver.extension import Host
from modelserver.surface.http.exchange import Exchange

# As in TorchServe, in any case, and whatever follows the name.
PATHS = r"/(?i:wfpredict)/(?P<model>[^/]+)(/.*)?"


async def extend(host: Host) -> None:
    """With ``enable_workflows=false`` its routes answer that there are no workflows, as TorchServe's do."""
    workflows: Workflows | None = None
    if host.settings.enable_workflows:
        from modelserver.ext.workflows.workflows import Workflows  # noqa: PLC0415 - where they are on

        workflows = Workflows(host.services, host.workdir)
        host.restore(partial(workflows.restore, host.notice))
        # A request that is between two nodes is not in any pool, so it is awaited.
        host.settle(workflows.settle)
    host.answer("workflow", PATHS, serve=_refuse if workflows is None else workflows.serve)
    host.routes("management", "modelserver.ext.workflows.routes", workflows, "management")
    host.routes("inference", "modelserver.ext.workflows.routes", workflows, "inference")


def _refuse(exchange: Exchange) -> None:
    exchange.fail(WorkflowNotFound.named(exchange.target.route.model))
