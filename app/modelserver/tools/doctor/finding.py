"""The findings: what each means, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from modelserver.engine.wire.probing import SourceLine

Level = Literal["error", "warning", "advice"]


class Kind(NamedTuple):
    """A kind of findings: its level, why it matters, and what to write instead."""

    level: Level
    why: str
    instead: str


KINDS: Final[dict[str, Kind]] = {
    "load-failed": Kind(
        "error",
        "A server would answer 503 to every request.",
        "Mend what the message names; the line is the last one of the model's own code.",
    ),
    "input-refused": Kind(
        "error",
        "Clients would get the same error.",
        "Mend the line that the message names, or give another input, with its --content-type.",
    ),
    "worker-ended": Kind(
        "error",
        "All requests of its batch fail, and the next ones wait until another worker has loaded the model.",
        "Raise an exception, or context.reject(index, message), instead of ending or blocking the process.",
    ),
    "answers-vary": Kind(
        "warning",
        "Nobody can tell whether batches change the answers, and clients cannot repeat a request.",
        "Seed what is random from the request, and leave times and counters out of the answer.",
    ),
    "workers-differ": Kind(
        "warning",
        "Chance decides which worker answers, and every restart changes the answers.",
        "Use zlib.crc32 or hashlib instead of hash(), whose values for texts differ by process; sort sets; "
        "load weights from a file, or seed what is random.",
    ),
    "answers-differ": Kind(
        "error",
        "An answer must not depend on who else asks at the same moment, as the server batches by load.",
        "Compute each row for itself: no statistics over the batch, no padding that the network sees (pass a "
        "mask), no state of the row before, networks in eval().",
    ),
    "order-changed": Kind(
        "error",
        "Each client gets the answer at its row's place: here another client's.",
        "Return answers in the order of data: a list by index, not a set, a sorted list, or what is ready "
        "first.",
    ),
    "wrong-count": Kind(
        "error",
        "The server cannot tell which answer belongs to whom, and calls the handler again for parts of the "
        "batch, or fails it.",
        "Return a list with exactly one answer per row: [answer(row) for row in data], not only for data[0].",
    ),
    "batch-failed": Kind(
        "error",
        "The server calls the handler again for halves of the batch, until each row is alone: batches only "
        "cost time.",
        "Mend the line that the message names: preprocess must make one batch of several rows.",
    ),
    "bad-row-spreads": Kind(
        "error",
        "One client's mistake changes the answers of others.",
        "Reject the row and keep its place: context.reject(index, message), and None as its answer.",
    ),
    "bad-row-retried": Kind(
        "warning",
        "The server finds the bad row by calling the handler again for parts of the batch: the others wait.",
        "Catch the error per row in preprocess and call context.reject(index, message); the others go on.",
    ),
    "empty-body": Kind(
        "warning",
        "It is the client's mistake, but counts as one of the server, in metrics and for clients that retry.",
        'Check for it: context.reject(index, "empty body"), which is a 400.',
    ),
    "threads-left": Kind(
        "error",
        "Each holds memory and a place in the process table, until no more can be started.",
        "Make one thread pool in initialize and use it for all calls; join what a call starts.",
    ),
    "processes-left": Kind(
        "error",
        "They hold memory until the worker ends, or stay as zombies.",
        "Wait for each process that a call starts (subprocess.run does), or start one in initialize.",
    ),
    "memory-grows": Kind(
        "error",
        "The worker grows until the system kills it.",
        "Keep nothing per call: no list or dict that only grows, caches with a bound (lru_cache(maxsize=…)), "
        "tensors without gradients (detach()).",
    ),
    "training-mode": Kind(
        "error",
        "Dropout makes answers random, and batch norms mix the rows of a batch, and change with each.",
        "Call eval() on the network at the end of initialize.",
    ),
    "training-mode-unused": Kind(
        "warning",
        "It computes the same now, but will not once it has dropout or batch norms.",
        "Call eval() on the network at the end of initialize.",
    ),
    "gradients-on": Kind(
        "warning",
        "The inputs of all layers are kept for a way back that never comes: it takes memory and time.",
        "Compute within `with torch.inference_mode():`.",
    ),
    "read-per-call": Kind(
        "warning",
        "Reading and building it again takes time in every call, while requests wait.",
        "Read it once, in initialize (load of a modelserver.Handler), and keep it in self.",
    ),
    "built-per-call": Kind(
        "warning",
        "Making or reading its weights takes time in every call, while requests wait.",
        "Build it once, in initialize (load of a modelserver.Handler), and keep it in self.",
    ),
    "not-required": Kind(
        "warning",
        "It is installed here, but need not be where the model is served.",
        "List it in requirements.txt, packed with --requirements-file; set install_py_dep_per_model=true.",
    ),
    "import-unused": Kind(
        "advice",
        "Every start of a worker waits for it, and every worker holds its memory.",
        "Remove the import, or move it to where it is used.",
    ),
    "batch-cost": Kind("advice", "Batches are the cheapest way to more requests per second.", ""),
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
    def kind(self) -> Kind:
        """What it is about."""
        return KINDS[self.id]

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.kind.level

    @property
    def instead(self) -> str:
        """What to write instead."""
        return self.advice or self.kind.instead
