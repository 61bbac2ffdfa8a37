"""The definition of a model's option, from which reading, storing, showing and documenting it derive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from modelserver.models.options.values import Values

_ROW = "row"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a registration: its values, and its OpenAPI description."""

    values: Values
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a model, the row of the field ``name``.

    Args:
        key: its name in model-config.yaml and in snapshots.
        group: of keys documented together.
        values: allowed in the file.
        summary: for the page of keys.
        default: as text, if it is not the value in ``ModelOptions``.
        otherwise: its value if nothing sets it, unless ``ModelOptions`` has a field of its name.
        own: not in TorchServe; snapshots keep it if it was set by a registration or change.
        strict: invalid values are refused, as for all ``own`` options, instead of ignored with a warning.
        requested: the description of the registration's parameter of this name, if there is one.
        schema: further OpenAPI properties of that parameter.
        parameter_values: its values, if they differ from the file's.
        unset: TorchServe's values for "not given" there.
        kserve: the name in KServe's batcher, which is a parameter too.
        changed: the description of the parameter that changes it while the model runs, if there is one.
        setting: the key of config.properties that applies to all models.
        below: further parameters that rank below it.
        described: where the description of a model shows it, with the block's name if it is in one.
        name: of the field.
    """

    key: str
    group: int
    values: Values
    summary: str
    default: str | None = None
    otherwise: Any = None
    own: bool = False
    strict: bool = False
    requested: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    parameter_values: Values | None = None
    unset: tuple[int, ...] = ()
    kserve: str = ""
    changed: str = ""
    setting: str = ""
    below: tuple[str, ...] = ()
    described: str = ""
    name: str = ""

    @property
    def is_strict(self) -> bool:
        """Whether invalid values in the file are refused."""
        return self.own or self.strict

    @property
    def parameter(self) -> Parameter:
        return Parameter(self.parameter_values or self.values, self.requested, self.schema)


class OptionGroup(int):
    """The place of keys that are documented together; called, it makes the field of one of them."""

    def __call__(self, key: str, values: Values, summary: str, **more: Any) -> Any:
        """A dataclass field with its row, an :class:`Option` of these arguments; None by default."""
        return field(default=None, metadata={_ROW: Option(key, int(self), values, summary, **more)})


def parameter(values: Values, description: str, schema: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Makes such a field for a parameter that is not an option, with a :class:`Parameter` as its row."""
    return field(default=None, metadata={_ROW: Parameter(values, description, schema)})


def options_of(kind: type) -> dict[str, Option]:
    """The rows of a dataclass's options, by the names of their fields."""
    return {name: replace(row, name=name) for name, row in _rows(kind) if isinstance(row, Option)}


def parameters_of(kind: type) -> dict[str, Parameter]:
    """The rows of its parameters that are not options."""
    return {name: row for name, row in _rows(kind) if isinstance(row, Parameter)}


def _rows(kind: type) -> list[tuple[str, object]]:
    return [(each.name, each.metadata.get(_ROW)) for each in fields(kind)]
