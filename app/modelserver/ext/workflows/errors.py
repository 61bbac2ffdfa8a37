"""What clients of workflows get as errors, besides those that models have, too."""

from __future__ import annotations

from modelserver.errors import BadRequest, ModelServerError


class InvalidWorkflow(BadRequest):
    """A workflow's archive, manifest or specification that cannot be served."""

    type = "InvalidWorkflowException"


class InvalidDag(BadRequest):
    """A workflow's graph that has a cycle, several starts or none, or names what does not exist."""

    type = "InvalidDAGException"


class WorkflowNotFound(ModelServerError):
    """No such workflow, or nothing to load at the given URL."""

    status = 404
    type = "WorkflowNotFoundException"

    @classmethod
    def named(cls, name: str) -> WorkflowNotFound:
        return cls(f"Workflow not found: {name}")


class WorkflowFailed(ModelServerError):
    """A workflow's models could not be registered; the message says why, and nothing of it is left."""

    type = "WorkflowException"
