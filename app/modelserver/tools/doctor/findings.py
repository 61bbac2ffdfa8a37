"""The findings of a check: what each means, what to write instead, and the report that collects them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from modelserver.tools.doctor.probing import SourceLine

Level = Literal["error", "warning", "advice"]


class FindingKind(NamedTuple):
    """A kind of findings: its level, why it matters, and what to write instead."""

    level: Level
    why: str
    instead: str


KINDS: Final[dict[str, FindingKind]] = {
    "load-failed": FindingKind(
        "error",
        "A server would answer 503 to every request.",
        "Mend what the message names; the line is the last one of the model's own code.",
    ),
    "input-refused": FindingKind(
        "error",
        "Clients would get the same error.",
        "Mend the line that the message names, or give another input, with its --content-type.",
    ),
    "worker-ended": FindingKind(
        "error",
        "All requests of its batch fail, and the next ones wait until another worker has loaded the model.",
        "Raise an exception, or context.reject(index, message), instead of ending or blocking the process.",
    ),
    "answers-vary": FindingKind(
        "warning",
        "Nobody can tell whether batches change the answers, and clients cannot repeat a request.",
        "Seed what is random from the request, and leave times and counters out of the answer.",
    ),
    "workers-differ": FindingKind(
        "warning",
        "Chance decides which worker answers, and every restart changes the answers.",
        "Use zlib.crc32 or hashlib instead of hash(), whose values for texts differ by process; sort sets; "
        "load weights from a file, or seed what is random.",
    ),
    "answers-differ": FindingKind(
        "error",
        "An answer must not depend on other requests at the same moment, as the server batches by load.",
        "Compute each row for itself: no statistics over the batch, no padding that the network sees (pass a "
        "mask), no state of the row before, networks in eval().",
    ),
    "order-changed": FindingKind(
        "error",
        "Each client gets the answer at its row's place: here another client's.",
        "Return answers in the order of data: a list by index, not a set, a sorted list, or what is ready "
        "first.",
    ),
    "wrong-count": FindingKind(
        "error",
        "The server cannot tell which answer belongs to whom, and calls the handler again for parts of the "
        "batch, or fails it.",
        "Return a list with exactly one answer per row: [answer(row) for row in data], not only for data[0].",
    ),
    "batch-failed": FindingKind(
        "error",
        "The server calls the handler again for halves of the batch, until each row is alone: batches only "
        "cost time.",
        "Mend the line that the message names: preprocess must make one batch of several rows.",
    ),
    "bad-row-spreads": FindingKind(
        "error",
        "One client's mistake changes the answers of others.",
        "Reject the row and keep its place: context.reject(index, message), and None as its answer.",
    ),
    "bad-row-retried": FindingKind(
        "warning",
        "The server finds the bad row by calling the handler again for parts of the batch: the others wait.",
        "Catch the error per row in preprocess and call context.reject(index, message); the others go on.",
    ),
    "empty-body": FindingKind(
        "warning",
        "It is the client's mistake, but counts as one of the server, in metrics and for clients that retry.",
        'Check for it: context.reject(index, "empty body"), which is a 400.',
    ),
    "threads-left": FindingKind(
        "error",
        "Each holds memory and a place in the process table, until no more can be started.",
        "Make one thread pool in initialize and use it for all calls; join what a call starts.",
    ),
    "processes-left": FindingKind(
        "error",
        "They hold memory until the worker ends, or stay as zombies.",
        "Wait for each process that a call starts (subprocess.run does), or start one in initialize.",
    ),
    "memory-grows": FindingKind(
        "error",
        "The worker grows until the system kills it.",
        "Keep nothing per call: no list or dict that only grows, caches with a bound (lru_cache(maxsize=…)), "
        "tensors without gradients (detach()).",
    ),
    "training-mode": FindingKind(
        "error",
        "Dropout makes answers random, and batch norms mix the rows of a batch, and change with each.",
        "Call eval() on the network at the end of initialize.",
    ),
    "training-mode-unused": FindingKind(
        "warning",
        "It computes the same now, but will not once it has dropout or batch norms.",
        "Call eval() on the network at the end of initialize.",
    ),
    "gradients-on": FindingKind(
        "warning",
        "The inputs of all layers are kept for a way back that never comes: it takes memory and time.",
        "Compute within `with torch.inference_mode():`.",
    ),
    "read-per-call": FindingKind(
        "warning",
        "Reading and building it again takes time in every call, while requests wait.",
        "Read it once, in initialize (load of a modelserver.Handler), and keep it in self.",
    ),
    "built-per-call": FindingKind(
        "warning",
        "Making or reading its weights takes time in every call, while requests wait.",
        "Build it once, in initialize (load of a modelserver.Handler), and keep it in self.",
    ),
    "not-required": FindingKind(
        "warning",
        "It is installed here, but need not be where the model is served.",
        "List it in requirements.txt, packed with --requirements-file; set install_py_dep_per_model=true.",
    ),
    "import-unused": FindingKind(
        "advice",
        "Every start of a worker waits for it, and every worker holds its memory.",
        "Remove the import, or move it to where it is used.",
    ),
    "batch-cost": FindingKind("advice", "Batches are the cheapest way to more requests per second.", ""),
}
"""What can be found, by the name that findings have for good."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen. ``line`` is 0 where no line of the model's own code is known."""

    id: str
    seen: str
    place: SourceLine | None = None
    advice: str = ""

    @property
    def kind(self) -> FindingKind:
        """The kind of the finding."""
        return KINDS[self.id]

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.kind.level

    @property
    def instead(self) -> str:
        """What to write instead."""
        return self.advice or self.kind.instead


@dataclass(slots=True)
class CheckReport:
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

    def add(self, kind: str, seen: str, place: SourceLine | None = None, advice: str = "") -> None:
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
