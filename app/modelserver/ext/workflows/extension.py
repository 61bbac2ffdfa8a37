"""Workflows: requests that go through several models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.workflows.errors import WorkflowNotFound
from modelserver.extension import Host
from modelserver.surface.api.services import Services
from modelserver.surface.http.exchange import Exchange

if TYPE_CHECKING:
    from modelserver.ext.workflows.workflows import Workflows
    from modelserver.surface.api.application import Application

# As in TorchServe, in any case, and whatever follows the name.
PATHS = r"/(?i:wfpredict)/(?P<model>[^/]+)(/.*)?"


class Extension:
    """With ``enable_workflows=false`` its routes answer that there are no workflows, as TorchServe's do."""

    async def open(self, host: Host) -> None:
        workflows = _make(host) if host.settings.enable_workflows else None

        def manage(app: Application, services: Services) -> None:
            from modelserver.ext.workflows import routes  # noqa: PLC0415 - with the application

            routes.add_workflow_management(app, workflows, model_api=services.settings.enable_model_api)

        def infer(app: Application, _: Services) -> None:
            from modelserver.ext.workflows import routes  # noqa: PLC0415 - with the application

            routes.add_workflow_inference(app, workflows)

        host.routes("management", manage)
        host.routes("inference", infer)
        if workflows is None:
            host.answer("workflow", PATHS, serve=_refuse)
            return

        async def settle(grace: float) -> None:
            # A request that is between two nodes is not in any pool, so it is awaited here.
            await workflows.settle(grace)
            workflows.close()

        host.answer("workflow", PATHS, serve=workflows.serve)
        host.restore(lambda: workflows.restore(host.notice))
        host.settle(settle)

    async def close(self, grace: float) -> None:
        """Nothing is open."""


def _make(host: Host) -> Workflows:
    from modelserver.ext.workflows.workflows import Workflows  # noqa: PLC0415 - where they are on

    return Workflows(host.services, host.workdir)


def _refuse(exchange: Exchange) -> None:
    exchange.fail(WorkflowNotFound.named(exchange.target.route.model))
