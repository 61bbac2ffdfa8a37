"""The actor that Ray runs on a node around one agent."""

from __future__ import annotations

import threading

import ray


class AgentActor:
    """One agent, and thereby one worker.

    Its life depends on the agent's connection to the server, not on the driver that created it.
    """

    def alive(self) -> None:
        """Answered when the actor has a node; while the agent runs, only by the actor's end."""

    def run(self, invitation: str) -> None:
        """Runs the agent, then ends the actor and its process.

        The agent gets the invitation by this call and not on creation, since what an actor is created with is
        part of Ray's state.
        """
        # Here, as the helper that creates actors has no agents.
        from modelserver.ext.cluster.node import agent  # noqa: PLC0415

        node = ray.get_runtime_context().get_node_id()[:8]
        # Ray's own thread would run it just as well, but handles signals and what is raised in its own way.
        thread = threading.Thread(target=agent.run, args=(invitation, node), name="agent", daemon=True)
        thread.start()
        thread.join()
        ray.actor.exit_actor()
