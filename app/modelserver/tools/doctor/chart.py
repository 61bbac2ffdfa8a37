"""What a check has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modelserver.tools.doctor.finding import Finding

if TYPE_CHECKING:
    from modelserver.engine.wire.probing import SourceLine


@dataclass(slots=True)
class Chart:
    """Findings, what was checked, what was not and why, and what was measured.

    ``methods`` are where the model's own methods begin. ``unanswered`` says why no answer could be
    checked, and is empty if one was.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, SourceLine] = field(default_factory=dict)
    unanswered: str = ""

    def found(self, kind: str, seen: str, place: SourceLine | None = None, advice: str = "") -> None:
        """Adds a finding; of each kind and line only the first."""
        if not any(each.id == kind and each.place == place for each in self.findings):
            self.findings.append(Finding(kind, seen, place, advice))

    def has(self, *kinds: str) -> bool:
        """Whether one of these was found."""
        return any(each.id in kinds for each in self.findings)

    def method(self, *names: str) -> SourceLine | None:
        """Where the first of these methods is that the model has."""
        return next((self.methods[name] for name in names if name in self.methods), None)

    def count(self, level: str) -> int:
        """How many findings of a level there are."""
        return sum(each.level == level for each in self.findings)
