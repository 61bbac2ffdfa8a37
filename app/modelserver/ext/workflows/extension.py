"""Workflows: requests that go through several models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.workflows.workflows import Workflows
from modelserver.surface.inference.routes import WORKFLOW

if TYPE_CHECKING:
    from modelserver.extension import Host
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.services import Services


class Extension:
    """On unless ``enable_workflows=false``."""

    async def open(self, host: Host) -> None:
        services = host.services
        workflows = Workflows(host.registry, host.settings, services.aside, host.workdir)

        def manage(app: Application, services: Services) -> None:
            from modelserver.ext.workflows import routes  # noqa: PLC0415 - with FastAPI

            routes.add_workflow_management(app, workflows, model_api=services.settings.enable_model_api)

        def infer(app: Application, _: Services) -> None:
            from modelserver.ext.workflows import routes  # noqa: PLC0415 - with FastAPI

            routes.add_workflow_inference(app, workflows)

        async def settle(grace: float) -> None:
            # Between two of its nodes, a request waits at none of them.
            await workflows.settle(grace)
            workflows.close()

        host.answer(WORKFLOW, workflows.serve)
        host.routes("management", manage)
        host.routes("inference", infer)
        host.restore(lambda: workflows.restore(host.notice))
        host.settle(settle)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
