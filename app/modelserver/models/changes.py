"""Changes to how a running version is served, without aborting requests: our own addition to scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modelserver.errors import BadRequest
from modelserver.models.options.resolve import REGISTER, ModelOptions, Registration
from modelserver.models.options.table import BATCHES, CHANGEABLE


@dataclass(frozen=True, slots=True)
class Change:
    """The options to change, and their values. Unlike at a registration, a delay does not imply a policy."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, **parameters: Any) -> Change:
        """A change with values validated as at a registration. Raises BadRequest."""
        checked = Registration(**parameters)
        named = {name: checked.value_of(name) for name in CHANGEABLE if checked.value_of(name) is not None}
        if "batch_policy" in named:
            named["batch_policy"] = named["batch_policy"].lower()
        return cls(named)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __str__(self) -> str:
        values = self.values.items()
        return ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in values)

    def applied_to(self, options: ModelOptions) -> ModelOptions:
        """The options with the change. Raises BadRequest for changes that this version does not support."""
        changed = self.values
        if reason := _fixed(options):
            for name in changed:
                if CHANGEABLE[name].group == BATCHES:
                    raise BadRequest(f"{name} cannot be changed while the model runs: {reason}")
        if options.sequence_batching and changed.get("autoscale"):
            raise BadRequest("autoscale=true is not possible: the workers hold the state of sequences")
        return options.changed(changed, REGISTER)


def _fixed(options: ModelOptions) -> str:
    """Why the batching of a version cannot be changed, or an empty string."""
    if options.sequence_batching:
        return "its requests belong to sequences"
    if options.continuous_batching or options.async_communication:
        return "its requests join and leave one by one"
    return "its workers are several processes" if options.processes else ""
