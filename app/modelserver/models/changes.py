"""Changing how a running version is served, without ending a request: our own addition to scaling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modelserver.errors import BadRequest
from modelserver.options.resolve import REGISTER, BatchPolicy, ModelOptions, Registration

if TYPE_CHECKING:
    from collections.abc import Iterator

# They decide how a batch is made, and mean something else where requests are not batched like others.
_BATCHING = ("batch_size", "max_batch_delay", "batch_policy")
_AUTOSCALING = ("autoscale", "autoscale_target_wait", "autoscale_up_pause", "autoscale_down_pause")
_RECYCLING = ("max_worker_memory", "max_worker_requests")


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be changed, None for what stays; the timeout in s, the other times in ms, memory in bytes.

    Exactly what is named changes: a delay alone leaves the policy, other than at a registration.
    """

    batch_size: int | None = None
    max_batch_delay: int | None = None
    batch_policy: str | None = None
    response_timeout: int | None = None
    autoscale: bool | None = None
    autoscale_target_wait: int | None = None
    autoscale_up_pause: int | None = None
    autoscale_down_pause: int | None = None
    max_worker_memory: int | None = None
    max_worker_requests: int | None = None

    @classmethod
    def of(cls, **given: Any) -> Change:
        """A change whose values were checked as those of a registration are. Raises BadRequest."""
        unset = {"batch_size": (-1, 0), "max_batch_delay": (-1, -100), "response_timeout": (-1,)}
        named = {name: value for name, value in given.items() if value not in (None, "")}
        checked = Registration(**named)
        if checked.batch_policy is not None:
            named["batch_policy"] = checked.batch_policy.lower()
        return cls(**{name: value for name, value in named.items() if value not in unset.get(name, ())})

    def __bool__(self) -> bool:
        return any(True for _ in self.named())

    def __str__(self) -> str:
        return ", ".join(f"{name}={_shown(value)}" for name, value in self.named())

    def named(self) -> Iterator[tuple[str, Any]]:
        """The names and values of what changes."""
        for name in (*_BATCHING, "response_timeout", *_AUTOSCALING, *_RECYCLING):
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def applied_to(self, options: ModelOptions) -> ModelOptions:
        """The options with the change. Raises BadRequest for what such a version cannot have."""
        changed: dict[str, Any] = dict(self.named())
        if reason := _fixed(options):
            for name in _BATCHING:
                if name in changed:
                    raise BadRequest(f"{name} cannot be changed while the model runs: {reason}")
        if options.sequence_batching and changed.get("autoscale"):
            raise BadRequest("autoscale=true is not possible: the workers keep the state of sequences")
        if "batch_policy" in changed:
            changed["batch_policy"] = BatchPolicy(changed["batch_policy"])
        sources = {**options.sources, **dict.fromkeys(changed, REGISTER)}
        return replace(options, **changed, sources=sources)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fixed(options: ModelOptions) -> str:
    """Why a version's batches stay as they are, or nothing."""
    if options.sequence_batching:
        return "its requests belong to sequences"
    if options.continuous_batching or options.async_communication:
        return "its requests join and leave one by one"
    return "its workers are several processes" if options.processes else ""
