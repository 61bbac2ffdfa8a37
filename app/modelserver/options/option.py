"""What is said of an option of a model, once: what reads, keeps, shows or explains it derives from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - helpers read annotations at run time
from dataclasses import dataclass, field, fields, replace
from typing import Any, ParamSpec

from modelserver.options.values import Values  # noqa: TC001 - read at run time by the helpers
from modelserver.settings.model_defaults import ModelDefaults

_P = ParamSpec("_P")
_ROW = "row"
MODELS = "`models=`"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a registration: its values, and what OpenAPI says of it."""

    values: Values
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a model, the row of the field ``name``.

    Args:
        key: its name in model-config.yaml and in snapshots.
        group: of the keys that are explained together.
        values: of the file.
        summary: for the page of keys.
        default: in words, where it is not the value that ``ModelOptions`` has.
        own: TorchServe does not have it; a snapshot keeps it where it was asked for by hand.
        strict: what cannot be meant is refused, as for all that are ``own``, instead of left out with a
            warning as TorchServe does.
        asked: the description of the registration's parameter of its name; none without.
        schema: more of that parameter.
        asked_values: its values, where they are others than the file's.
        unset: TorchServe's marks for "not given" there.
        kserve: the word of KServe's batcher for it, which is a parameter too.
        changed: the description of the parameter that changes it while the model runs; none without.
        setting: the key of config.properties that holds for all models.
        below: further parameters that rank below it.
        described: where the description of a model shows it, with the block's name if it is in one.
        name: of the field.
    """

    key: str
    group: int
    values: Values
    summary: str
    default: str | None = None
    own: bool = False
    strict: bool = False
    asked: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    asked_values: Values | None = None
    unset: tuple[int, ...] = ()
    kserve: str = ""
    changed: str = ""
    setting: str = ""
    below: tuple[str, ...] = ()
    described: str = ""
    name: str = ""

    @property
    def is_strict(self) -> bool:
        """A value of the file that cannot be meant is refused."""
        return self.own or self.strict

    @property
    def parameter(self) -> Parameter:
        """What a registration may say."""
        return Parameter(self.asked_values or self.values, self.asked, self.schema)

    @property
    def ranks_above(self) -> tuple[str, ...]:
        """What counts before the file, in the words of a user."""
        first, *others = self.kserve.split("_")
        words = (
            (self.kserve, "batcher." + first + "".join(map(str.capitalize, others))) if self.kserve else ()
        )
        return tuple(f"`{word}`" for word in ((self.name, *words) if self.asked else words))

    @property
    def ranks_below(self) -> tuple[str, ...]:
        """What counts after the file."""
        setting = f"`{self.setting}`" + (" of config.properties" if self.own else "")
        return (
            *(f"`{name}`" for name in self.below),
            *((MODELS,) if self.name in ModelDefaults.__slots__ else ()),
            *((setting,) if self.setting else ()),
        )


def _row(make: Callable[_P, object]) -> Callable[_P, Any]:
    def row(*args: _P.args, **more: _P.kwargs) -> Any:
        return field(default=None, metadata={_ROW: make(*args, **more)})

    return row


option = _row(Option)
"""A field of a dataclass with its row; None unless given."""
parameter = _row(Parameter)
"""As ``option``, for a parameter that is none."""


def options_of(kind: type) -> dict[str, Option]:
    """The rows of a dataclass's options, by the names of their fields."""
    found = {each.name: each.metadata.get(_ROW) for each in fields(kind)}
    return {name: replace(row, name=name) for name, row in found.items() if isinstance(row, Option)}


def parameters_of(kind: type) -> dict[str, Parameter]:
    """Those of its parameters that are no options."""
    found = {each.name: each.metadata.get(_ROW) for each in fields(kind)}
    return {name: row for name, row in found.items() if isinstance(row, Parameter)}
