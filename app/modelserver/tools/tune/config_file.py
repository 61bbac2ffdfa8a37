"""The ``model-config.yaml`` of the result: the archive's own, with our keys and the reason for each."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from modelserver.models.settings.settings import Settings
from modelserver.tools.commands import counted
from modelserver.tools.tune.tuner import TuningResult, clients_text

FIRST_LINE = "# Written by modelserver tune."
DEFAULT_QUEUE = Settings().job_queue_size
# Other keys for batching would contradict the result.
_OURS = frozenset(
    [
        "minWorkers",
        "maxWorkers",
        "workerThreads",
        "batchSize",
        "maxBatchDelay",
        "batchPolicy",
        "jobQueueSize",
        "batcher",
    ]
)
_BLOCK_WORDS = frozenset({"maxBatchSize", "max_batch_size", "maxLatency", "max_latency"})
_WIDTH = 108
_INDEPENDENT = "With independent clients (requests at random moments)"


def config_text(original: str | None, result: TuningResult, facts: Mapping[str, str]) -> str:
    """The file. ``original`` is the archive's, whose other keys and comments are kept.

    The result must have a choice. The reasons are comments above the keys.
    """
    existing = mapping(original)
    values = tuned_values(existing, result)
    others = {key: value for key, value in existing.items() if key not in _OURS}
    why = reasons(result)
    head = _comments([FIRST_LINE.removeprefix("# "), *_summary(result, facts)])
    ours = [
        (_comments([why[key]]) if key in why else "") + dump({key: value}) for key, value in values.items()
    ]
    for original_part in (_without_our_lines(original or ""), dump(others) if others else ""):
        text = _joined([head, original_part, *ours])
        if mapping(text) == others | values:
            return text
    raise AssertionError("PyYAML's output reads back differently")


def _joined(parts: list[str]) -> str:
    return "\n".join(part.strip("\n") + "\n" for part in parts if part.strip())


def mapping(text: str | None) -> dict[str, Any]:
    """The mapping in a YAML text; empty if it cannot be read, or is something else."""
    try:
        document = yaml.safe_load(text or "")
    except yaml.YAMLError:
        return {}
    return document if isinstance(document, dict) else {}


def tuned_values(existing: Mapping[str, Any], result: TuningResult) -> dict[str, Any]:
    """Our keys. An archive's ``batcher`` block is kept, with changed numbers."""
    setting = result.choice.setting
    values: dict[str, Any] = {"minWorkers": setting.workers, "maxWorkers": setting.workers}
    if setting.threads is not None:
        values["workerThreads"] = setting.threads
    if "batcher" in existing:
        block = existing["batcher"] if isinstance(existing["batcher"], dict) else {}
        others = {key: value for key, value in block.items() if key not in _BLOCK_WORDS}
        values["batcher"] = {
            "maxBatchSize": setting.batch_size,
            "maxLatency": max(1, setting.delay_ms),
            **others,
        }
        values["batchPolicy"] = setting.policy
    else:
        values |= {"batchSize": setting.batch_size, "batchPolicy": setting.policy}
        if setting.policy != "greedy":
            values["maxBatchDelay"] = setting.delay_ms
    queue = existing.get("jobQueueSize")
    # The queue holds twice the clients of the proof.
    needed = 2 * (result.choice.figure.clients or 1)
    if isinstance(queue, int) and queue >= needed:
        values["jobQueueSize"] = queue
    elif needed > DEFAULT_QUEUE or queue is not None:
        values["jobQueueSize"] = max(needed, DEFAULT_QUEUE)
    return values


def reasons(result: TuningResult) -> dict[str, str]:
    """Why each key has its value, with figures."""
    setting = result.choice.setting
    size, clients = _size_reason(result), clients_text(result.choice.figure.clients or 1)
    policy = {
        "adaptive": "adaptive: a batch waits only if that pays off; a lone request never waits",
        "greedy": "greedy: no batch ever waits",
        "window": f"window: a batch that is not full waits {setting.delay_ms} ms",
    }[setting.policy]
    shared = "; the cores are shared among the workers" if setting.threads is None else ""
    delay = (
        "maximum milliseconds that an instance waits for others"
        if setting.policy == "window"
        else "milliseconds: a limit that is rarely reached"
    )
    return {
        "minWorkers": f"{_rival(result, 'workers')}{shared}.",
        "workerThreads": f"per worker. {_rival(result, 'threads')}.",
        "batchSize": size,
        "batcher": size,
        "batchPolicy": f"{policy}. {_rival(result, 'policy')}.",
        "maxBatchDelay": f"{delay}.",
        "jobQueueSize": f"requests that may wait; measured with {clients} at once.",
    }


def _size_reason(result: TuningResult) -> str:
    line, costs = result.costs.line, result.costs.handler_ms
    setting = result.choice.setting
    lines = []
    if line is not None and line.worth_telling:
        lines.append(f"one worker with all cores takes about {line} for a batch of n")
    if setting.batch_size in costs:
        lines.append(f"{costs[setting.batch_size]:.4g} ms for {setting.batch_size}")
    lines.extend(f"not tried: {why}" for why in result.costs.pruned)
    lines.append(_rival(result, "batch_size"))
    return "; ".join(lines) + "."


def _rival(result: TuningResult, field: str) -> str:
    """The best measured setting that differs only in this field, compared to the chosen one."""
    chosen, goal = result.choice, result.goal
    same = [
        point
        for point in result.points
        if not point.figure.void and _differs_only(point.setting, chosen.setting, field)
    ]
    ours = [p for p in result.points if p.setting == chosen.setting and not p.figure.void]
    here = max(ours, key=lambda p: (goal.met(p.figure), goal.worth(p.figure)), default=chosen)
    text = f"measured {goal.text_of(here.figure)}"
    if not same:
        return f"{text}, nothing else was compared"
    rival = max(same, key=lambda p: (goal.met(p.figure), goal.worth(p.figure)))
    missed = "" if goal.met(rival.figure) else f" (misses {goal.text})"
    named = getattr(rival.setting, field)
    what = {
        "workers": counted(named, "worker"),
        "batch_size": f"batch {named}",
        "threads": "an equal share of the cores" if named is None else f"threads={named}",
    }.get(field, str(named))
    return f"{text}; with {what} {goal.text_of(rival.figure)}{missed}"


def _differs_only(one: object, other: object, field: str) -> bool:
    fields = {"batch_size", "policy", "workers", "threads"}
    return all((getattr(one, name) == getattr(other, name)) != (name == field) for name in fields)


def _summary(result: TuningResult, facts: Mapping[str, str]) -> list[str]:
    figure, clients = result.choice.figure, clients_text(result.choice.figure.clients or 1)
    met = ": met" if result.goal.kind == "limit" else ""
    verdict = met if result.met else ": NOT MET; this is the best result"
    lines = [
        f"Goal {result.goal.text}{verdict}.",
        (
            f"Measured for longer at the end, {clients} at once: {figure.rate:.4g} requests/s, "
            f"p50 {figure.p50_ms:.4g} ms, p90 {figure.p90_ms:.4g} ms, p99 {figure.p99_ms:.4g} ms "
            f"({figure.requests} requests, queue {figure.queue_ms:.4g} ms, "
            f"handler {figure.inference_ms:.4g} ms, batches of {figure.mean_batch:.3g})."
        ),
        sustained_text(result),
        f"On this machine: {', '.join(f'{name} {fact}' for name, fact in facts.items())}.",
    ]
    return [line for line in lines if line]


def sustained_text(result: TuningResult) -> str:
    """What independent clients may expect, in a sentence."""
    figure = result.sustained
    if figure is None:
        if result.goal.kind != "limit" or not result.met:
            return ""
        return f"{_INDEPENDENT} the goal was met at none of the rates tried."
    keeps = " the goal is met" if result.goal.kind == "limit" else ""
    return (
        f"{_INDEPENDENT} at {figure.offered or 0:.4g} requests/s{keeps}: "
        f"p50 {figure.p50_ms:.4g} ms, p99 {figure.p99_ms:.4g} ms."
    )


def _comments(texts: list[str]) -> str:
    """Comment lines of a bounded width."""
    wrapped = [line for text in texts for line in textwrap.wrap(_plain(text), _WIDTH - 2)]
    return "".join(f"# {line}\n" for line in wrapped)


def _plain(text: str) -> str:
    """One line without characters that end a comment or that YAML rejects."""
    return "".join(c if c.isprintable() else " " for c in text)


def _without_our_lines(original: str) -> str:
    """The text without our keys, the comments directly above them, and the head of an earlier tuning."""
    node = yaml.compose(original, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return original
    lines = original.splitlines(keepends=True)
    dropped: set[int] = set()
    if lines[0].startswith(FIRST_LINE):
        dropped.update(itertools.takewhile(lambda number: lines[number].startswith("#"), range(len(lines))))
    starts = [key.start_mark.line for key, _ in node.value] + [len(lines)]
    for index, (key, value) in enumerate(node.value):
        if key.value in _OURS:
            first = starts[index]
            end = min(starts[index + 1], max(value.end_mark.line + 1, first + 1))
            while end > first + 1 and not lines[end - 1].strip(" \n").lstrip("#"):
                end -= 1
            while end > first + 1 and lines[end - 1].startswith("#"):
                end -= 1
            while first > 0 and lines[first - 1].startswith("#"):
                first -= 1
            dropped.update(range(first, end))
    return "".join(line for number, line in enumerate(lines) if number not in dropped)


def dump(values: dict[str, Any]) -> str:
    """YAML in the given order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=_WIDTH)
