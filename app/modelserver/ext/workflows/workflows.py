"""The registered workflows: registering, unregistering, asking them (reference 19)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.errors import BadRequest, Conflict, ModelNotFound, ModelServerError, ServiceUnavailable
from modelserver.ext.workflows.errors import InvalidWorkflow, WorkflowFailed, WorkflowNotFound
from modelserver.ext.workflows.workflow import Workflow
from modelserver.models.version import SavedWorkflow
from modelserver.surface.api.services import Services
from modelserver.surface.http.exchange import Exchange

if TYPE_CHECKING:
    from modelserver.ext.workflows.archive import ArchiveReader, WorkflowArchive
    from modelserver.ext.workflows.run import WorkflowRun
    from modelserver.ext.workflows.specification import NodeSpec

_log = logging.getLogger("modelserver.workflows")


class Workflows:
    """The workflows by name; their nodes are models of the registry, named ``<workflow>__<node>``.

    How they were registered is in ``registry.workflows``, which snapshots keep; those that could not be
    restored stay there, too.

    Args:
        services: the models; the settings: the store of workflow archives, the size of bodies; what does
            what would block the event loop.
        workdir: for unpacked archives.
    """

    def __init__(self, services: Services, workdir: Path) -> None:
        self._services = services
        self._registry = services.registry
        self._settings = services.settings
        self._workdir = workdir / "workflows"
        self._reader: ArchiveReader | None = None
        self._run_of: type[WorkflowRun]
        self._workflows: dict[str, Workflow] = {}
        self._failures: dict[str, str] = {}
        # Names of workflows that are being registered or unregistered.
        self._busy: set[str] = set()

    def get(self, name: str) -> Workflow:
        """Raises WorkflowNotFound, and ServiceUnavailable for one that could not be restored."""
        workflow = self._workflows.get(name)
        if workflow is not None:
            return workflow
        if name in self._failures:
            raise ServiceUnavailable(f"Workflow {name} could not be restored: {self._failures[name]}")
        raise WorkflowNotFound.named(name)

    def urls(self) -> dict[str, str]:
        """The URLs by name, of those that could not be restored too."""
        registered = {name: workflow.url for name, workflow in self._workflows.items()}
        return {**{name: saved.url for name, saved in self._registry.workflows.items()}, **registered}

    # -- changing

    async def register(self, request: SavedWorkflow, name: str | None = None) -> Workflow:
        """Registers a workflow with all its models, and waits for their workers.

        Raises WorkflowNotFound, InvalidWorkflow, InvalidDag, Conflict, WorkflowFailed for models that cannot
        be registered, and the errors of a download; nothing is left behind then.
        """
        archive = await (await self._opened()).open(request.url)
        try:
            return await self._register(archive, name, request)
        except BaseException:
            await asyncio.to_thread(archive.remove)
            raise

    async def _opened(self) -> ArchiveReader:
        """Returns the reader of archives, which is imported for the first one."""
        if self._reader is None:
            archives = await asyncio.to_thread(import_module, "modelserver.ext.workflows.archive")
            runs = await asyncio.to_thread(import_module, "modelserver.ext.workflows.run")
            self._run_of = runs.WorkflowRun
            self._reader = archives.ArchiveReader(
                self._registry.builder.find_file, self._settings.workflow_store, self._workdir
            )
        return self._reader

    async def _register(self, archive: WorkflowArchive, name: str | None, request: SavedWorkflow) -> Workflow:
        workflow = Workflow(name or archive.contents.name, archive, self._settings.load)
        name = workflow.name
        self._check_names(workflow, request)
        for warning in workflow.specification.warnings:
            _log.warning("Workflow %s: %s", name, warning)
        self._busy.add(name)
        try:
            registering = [
                self._register_node(workflow, node, request) for node in workflow.specification.nodes.values()
            ]
            await self._all(workflow, registering)
        finally:
            self._busy.discard(name)
        self._workflows[name] = workflow
        self._failures.pop(name, None)
        if request.downloaded and (store := self._settings.workflow_store) is not None:
            workflow.archive = replace(archive, downloaded=store / request.url)
        if archive.downloaded is not None:
            request = request._replace(url=archive.downloaded.name, downloaded=True)
        self._registry.workflows[name] = request
        _log.info("Workflow %s registered: %s", name, workflow.specification.dag)
        await self._registry.changed()
        return workflow

    def _check_names(self, workflow: Workflow, request: SavedWorkflow) -> None:
        """Raises InvalidWorkflow, or Conflict where names are taken, but by other versions of a node."""
        name = workflow.name
        if not name:
            raise InvalidWorkflow(
                "Workflow name is not defined: the manifest has no workflowName, "
                "the request no workflow_name."
            )
        if name in self._workflows or name in self._busy:
            raise Conflict(f"Workflow {name} is already registered.")
        models = [workflow.model_name(node) for node in workflow.specification.nodes]
        try:
            self._registry.check_name(name, "workflow")
            for model in models:
                self._registry.check_name(model)
        except BadRequest as error:
            raise InvalidWorkflow(error.message) from None
        taken = set(self._registry.names()) - request.nodes.keys()
        for model in models:
            if model in taken:
                raise Conflict(f"Workflow {name} needs the name {model}, which a model already has.")

    async def _register_node(self, workflow: Workflow, node: NodeSpec, request: SavedWorkflow) -> None:
        registration = workflow.registration(node, request)
        try:
            model = await self._registry.register(registration)
        except ModelServerError as error:
            name = workflow.model_name(node.name)
            reason = f"Workflow Node {name} failed to register. Details: {error.message}"
            raise WorkflowFailed(reason) from error
        if registration.trusted:
            # Descriptions show the archive's URL, not the unpacked folder.
            model.url, model.archive = workflow.url, replace(model.archive, url=workflow.url)
        await self._registry.wait_loaded(model)

    async def _all(self, workflow: Workflow, registering: Iterable[Coroutine[None, None, None]]) -> None:
        """Awaits all; after a failure unregisters what was registered, and raises WorkflowFailed."""
        tasks = [asyncio.ensure_future(each) for each in registering]
        try:
            await asyncio.wait(tasks)
            failures = [error for task in tasks if (error := task.exception()) is not None]
            if not failures:
                return
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._remove_models(workflow)
            raise
        await self._remove_models(workflow)
        for error in failures:
            if not isinstance(error, ModelServerError):
                raise error
        reasons = ", ".join(str(error) for error in failures)
        raise WorkflowFailed(f"Workflow {workflow.name} has failed to register. Failures: [{reasons}]")

    async def unregister(self, name: str) -> None:
        """Unregisters a workflow and its models; requests being answered have the usual grace.

        Raises WorkflowNotFound, and Conflict while one of its models is being replaced.
        """
        if name in self._failures:
            del self._failures[name], self._registry.workflows[name]
            await self._registry.changed()
            return
        workflow = self.get(name)
        for node in workflow.specification.nodes:
            for model in self._versions(workflow, node):
                self._registry.changeable(*model)
        del self._workflows[name], self._registry.workflows[name]
        self._busy.add(name)
        try:
            await workflow.settle(self._settings.unregister_model_timeout)
            await self._remove_models(workflow)
            await asyncio.to_thread(workflow.archive.remove)
        finally:
            self._busy.discard(name)
        _log.info("Workflow %s unregistered.", name)

    async def _remove_models(self, workflow: Workflow) -> None:
        await asyncio.gather(*(self._remove_model(workflow, node) for node in workflow.specification.nodes))

    async def _remove_model(self, workflow: Workflow, node: str) -> None:
        for name, version in self._versions(workflow, node):
            try:
                await self._registry.unregister(name, version)
            except ModelServerError as error:  # noqa: PERF203 - each one fails alone
                if error.status != ModelNotFound.status:
                    _log.error("Workflow %s: %s %s stays: %s", workflow.name, name, version, error.message)

    def _versions(self, workflow: Workflow, node: str) -> list[tuple[str, str]]:
        """The versions of a node's model, the default one last; empty if somebody unregistered it."""
        name = workflow.model_name(node)
        try:
            versions = self._registry.versions(name)
        except ModelNotFound:
            return []
        return [(name, model.version) for model in sorted(versions, key=self._registry.is_default)]

    # -- asking

    def serve(self, exchange: Exchange) -> None:
        """Answers a request for ``/wfpredict/{workflow}``, now or later."""
        try:
            workflow = self.get(exchange.target.route.model)
        except ModelServerError as error:
            exchange.fail(error)
            return
        if not exchange.encoding:
            self._run(exchange, workflow)
            return

        async def read() -> None:
            await self._services.off_loop.inflate(exchange, self._settings.max_request_size)
            self._run(exchange, workflow)

        exchange.on_disconnect = self._services.off_loop.start(len(exchange.body), read(), exchange.fail)

    def _run(self, exchange: Exchange, workflow: Workflow) -> None:
        run = self._run_of(exchange, workflow, self._services, on_end=workflow.remove_run)
        workflow.add_run(run)
        run.start()

    # -- start and end

    async def restore(self, on_notice: Callable[[str], None]) -> bool:
        """Registers the workflows of a snapshot again; returns whether that worked for all.

        A failure is logged and reported, and what asks the workflow is told of it.
        """
        for name, saved in list(self._registry.workflows.items()):
            try:
                await self.register(saved, name)
                await self._restore_nodes(name, saved)
            except ModelServerError as error:  # noqa: PERF203 - each one fails alone
                self._failures[name] = error.message
                line = f"Workflow {name} cannot be restored: {error.message}"
                _log.error("%s", line)
                on_notice(line)
        return not self._failures

    async def _restore_nodes(self, name: str, saved: SavedWorkflow) -> None:
        """Their default versions and traffic, now that all versions are there."""
        for model, node in saved.nodes.items():
            try:
                await self._registry.set_default(model, node["defaultVersion"])
                if (traffic := node.get("traffic")) is not None:
                    self._registry.router.direct(model, traffic)
            except ModelServerError as error:  # noqa: PERF203 - each one fails alone
                _log.warning("Workflow %s: the traffic of %s is not restored: %s", name, model, error.message)
        if saved.nodes:
            await self._registry.changed()

    async def settle(self, grace: float) -> None:
        """Waits at most ``grace`` seconds until no request is being answered; ends what reads archives."""
        await asyncio.gather(*(workflow.settle(grace) for workflow in self._workflows.values()))
        if self._reader is not None:
            self._reader.close()
