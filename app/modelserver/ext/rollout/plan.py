"""What an operator wants of a model's traffic: weights, stickiness, shadows, promotion."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from modelserver.errors import BadRequest
from modelserver.ext.rollout.agreement import excerpt, is_number

# Versions that may have a weight, or be shadows, and characters of a header's name.
MOST_VERSIONS = 16
_LONGEST = 256
# How far numbers in answers may differ, unless said otherwise.
TOLERANCE = 1e-5
# How far weights may be from 100 in sum: numbers such as 33.3 are not exact.
_SLACK = 1e-3
# The least percent but 0: of less, nothing would come in a lifetime, and logarithms would be 0.
_LEAST = 1e-6
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Percent: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)] | Annotated[float, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Mode: TypeAlias = Literal["exact", "numeric", "top1"]


class Shadowing(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a version shadows: it gets copies of ``percent`` of the requests, and answers are compared.

    ``exact``: byte by byte; ``numeric``: numbers may differ by ``tolerance``, relative or absolute; ``top1``:
    the most probable class must be the same. A tolerance alone means ``numeric``.
    """

    percent: Percent
    compare: Mode | None = None
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None

    @property
    def mode(self) -> Mode:
        """How bodies are compared."""
        return self.compare or ("exact" if self.tolerance is None else "numeric")

    @property
    def slack(self) -> float:
        """How far numbers may differ."""
        return TOLERANCE if self.tolerance is None else self.tolerance


class Promotion(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When the weight of a version goes up a step: after so many answers of its own, within these bounds.

    ``agreement``: the least share of compared answers that agree; ``p99_ratio``: its 99th percentile of
    latency to that of the other version, at most; ``errors``: the share of its answers that failed, at most.
    """

    after: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 10_000
    agreement: Share | None = None
    p99_ratio: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    errors: Share | None = None
    steps: tuple[Percent, ...] = (1, 5, 25, 50, 100)
    version: str = ""
    dry_run: bool = False


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of it; weights are percent by version, and without any the default version gets everything."""

    weights: dict[str, Percent] = {}
    sticky: str = ""
    shadow: dict[str, Shadowing] = {}
    promote: Promotion | None = None

    def __bool__(self) -> bool:
        return self != _NOTHING

    def document(self) -> dict[str, Any]:
        """Returns the plan as JSON, which :func:`patched` reads."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


_NOTHING = Plan()
_PARTS = frozenset(Plan.__struct_fields__)


def patched(plan: Plan, document: object) -> Plan:
    """The plan with the parts that the document gives; ``null`` removes a part.

    A document of numbers only is the weights. Raises BadRequest, naming what is wrong.
    """
    if not isinstance(document, dict) or not document:
        raise BadRequest("The traffic must be a JSON object of weights by version, or of its parts.")
    changes: dict[str, Any] = document
    odd = next((key for key, value in changes.items() if key not in _PARTS and isinstance(value, dict)), None)
    if odd is not None:
        parts = ", ".join(Plan.__struct_fields__)
        raise BadRequest(f"The traffic has no part {excerpt(odd)}; there are {parts}.")
    if not _PARTS & changes.keys() or all(is_number(value) for value in changes.values()):
        changes = {"weights": changes}
    changes = {
        key: {} if value is None and key in ("weights", "shadow") else value for key, value in changes.items()
    }
    if changes.get("sticky", "") is None:
        changes["sticky"] = ""
    try:
        return msgspec.convert({**plan.document(), **changes}, Plan)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The traffic is invalid: {error}") from None


def check_form(document: object) -> None:
    """Raises BadRequest for a document that no versions of a model could carry out."""
    plan = msgspec.structs.replace(patched(Plan(), document), promote=None)
    check(plan, [*plan.weights, *plan.shadow], "")


def check(plan: Plan, versions: Iterable[str], default: str) -> None:
    """Raises BadRequest for a plan that these versions of a model cannot carry out."""
    known = list(versions)
    for part, named in (("weights", plan.weights), ("shadow", plan.shadow)):
        if len(named) > MOST_VERSIONS:
            raise BadRequest(f"{part}: {len(named)} versions are named, {MOST_VERSIONS} are allowed.")
        for version in named:
            _check_known(part, version, known)
    steps = () if plan.promote is None else plan.promote.steps
    for percent in (*plan.weights.values(), *(each.percent for each in plan.shadow.values()), *steps):
        if 0 < percent < _LEAST:
            raise BadRequest(f"{percent:g} percent are too few: 0 or at least {_LEAST:f} are needed.")
    if plan.weights and abs(sum(plan.weights.values()) - 100) > _SLACK:
        total = sum(plan.weights.values())
        raise BadRequest(f"weights: they add up to {total:g}, they must add up to 100.")
    if plan.sticky and (len(plan.sticky) > _LONGEST or not _HEADER.fullmatch(plan.sticky)):
        raise BadRequest("sticky: the name of a header is needed.")
    if plan.promote is not None:
        _check_promotion(plan, plan.promote, known, default)


def _check_promotion(plan: Plan, promote: Promotion, known: list[str], default: str) -> None:
    if promote.agreement is promote.p99_ratio is promote.errors is None:
        raise BadRequest("promote: a bound is needed: agreement, p99_ratio or errors.")
    steps = promote.steps
    if not steps or steps[-1] > 100 or any(a >= b for a, b in zip((0, *steps), steps, strict=False)):
        raise BadRequest("promote.steps: percent that increase, each above 0, are needed.")
    version, base = pair_of(plan, default)
    for each in (version, base):
        _check_known("promote", each, known)
    copies = version in plan.shadow and plan.shadow[version].percent > 0
    if promote.agreement is not None and not copies:
        raise BadRequest(f"promote.agreement: nothing is compared, as {version} is no shadow.")
    if not copies and not plan.weights.get(version):
        raise BadRequest(f"promote: {version} gets no requests: it needs a weight, or must be a shadow.")


def pair_of(plan: Plan, default: str) -> tuple[str, str]:
    """The version that is promoted, and the one that it replaces.

    Raises BadRequest if the plan does not say which.
    """
    assert plan.promote is not None  # noqa: S101 - for callers with a promotion
    version = plan.promote.version
    if not version:
        others = {*plan.weights, *plan.shadow} - {default}
        if len(others) != 1:
            raise BadRequest("promote.version: the version to promote is needed.")
        (version,) = others
    rest = [each for each, weight in plan.weights.items() if each != version and weight]
    base = rest[0] if rest else default
    if len(rest) > 1 or base == version:
        raise BadRequest(f"promote: exactly one other version beside {version} must have the other requests.")
    return version, base


def without(plan: Plan, version: str) -> Plan:
    """The plan without a version; the others get its weight, in proportion to theirs."""
    weights = {each: weight for each, weight in plan.weights.items() if each != version}
    total = sum(weights.values())
    if len(weights) < len(plan.weights):
        weights = {each: tidy(weight * 100 / total) for each, weight in weights.items()} if total else {}
    shadow = {each: how for each, how in plan.shadow.items() if each != version}
    return msgspec.structs.replace(plan, weights=weights, shadow=shadow)


def renamed(plan: Plan, before: str, after: str) -> Plan:
    """The plan with another name of a version."""

    def name(version: str) -> str:
        return after if version == before else version

    promote = plan.promote
    if promote is not None:
        promote = msgspec.structs.replace(promote, version=name(promote.version))
    return msgspec.structs.replace(
        plan,
        weights={name(version): weight for version, weight in plan.weights.items()},
        shadow={name(version): how for version, how in plan.shadow.items()},
        promote=promote,
    )


def tidy(number: float) -> int | float:
    """The number without needless digits."""
    number = round(number, 6)
    return int(number) if number == int(number) else number


def _check_known(part: str, version: str, known: list[str]) -> None:
    if version not in known:
        raise BadRequest(f"{part}: version {version[:100]} is not registered; there are {', '.join(known)}.")
