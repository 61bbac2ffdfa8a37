"""The section of docs/migrating.md on the two sets of defaults; its first table is that of the keys."""

from __future__ import annotations

from modelserver.models.settings.settings import KEYS

_BEGIN = """
## Two sets of defaults

modelserver has two sets of defaults: its own, and those of TorchServe 0.12. TorchServe's apply to all keys
that are not set explicitly

- with `compat_defaults=torchserve` in `config.properties`,
- with the flag `--compat-defaults torchserve`,
- with `TS_COMPAT_DEFAULTS=torchserve` in the environment, or
- when the server is started as `torchserve`, by the alias above, and none of the three is `modelserver`.

The server then prints `Defaults: TorchServe's` when it starts, and `--print-settings` shows each value with
its source. Explicit settings have the same effect with both sets.

| key | modelserver's | TorchServe's | meaning |
|---|---|---|---|
"""

_RULES = (
    (
        "starting without naming a configuration file",
        "restores the newest snapshot's models, but not its settings",
        "uses the newest snapshot as the configuration, and `./config.properties` only if there is none",
    ),
    (
        "starting with a configuration file",
        "restores the newest snapshot too",
        "restores that file's `model_snapshot`, if any",
    ),
    ("`--models`, if a state is restored", "are loaded too", "are not loaded"),
    (
        "a restored archive that is not in the model store",
        "the model's state is FAILED, with the reason",
        "the server does not start",
    ),
    ("`GET /` at the inference address", '`{"status": "alive"}`', "405"),
    ("a gRPC prediction if the queue is full or there are no workers", "UNAVAILABLE", "INTERNAL"),
    ("labels in the metrics text", '`{Level="Host"}`', '`{Level="Host",}`'),
    (
        "handlers' metrics, without `metrics_config`",
        "are all kept",
        "`HandlerTime` and `PredictionTime` are kept, others with `model_metrics_auto_detect`",
    ),
    (
        "the content type of bytes and text that a handler returns",
        "`application/octet-stream`, `text/plain; charset=utf-8`",
        "none, unless the handler sets one",
    ),
    (
        "system metrics in a container with limits",
        "are relative to the container's limits",
        "are those of the machine",
    ),
)
"""Differences that no key controls: the subject, modelserver's behaviour, TorchServe's."""

_SAFE = (
    (
        "if `allowed_urls` is not set, only URLs of public hosts are allowed, and no `file://`",
        "clients could make the server fetch from networks that only it can reach (CVE-2023-43654)",
    ),
    (
        "archives may not contain `..`, links, devices or bombs; paths from clients must be in the store",
        "an archive must not write or read elsewhere (CVE-2023-48299, CVE-2024-35198)",
    ),
    (
        "YAML is read without tags, weights with `weights_only`",
        "configuration and weights are data, not code (CVE-2022-1471)",
    ),
    (
        "tokens have 32 characters and are compared in constant time; only the path `/token` renews them",
        "TorchServe's have 8, and any request with `/token` in its path renews them",
    ),
    (
        "the server removes `key_file.json` whenever it stops, not only after `--stop`",
        "a file with invalid tokens is misleading",
    ),
    (
        "snapshots contain no passwords, and are written atomically",
        "others may be able to read them; the disk may be full",
    ),
    (
        "an archive that cannot be loaded affects only its own model, not the models after it",
        "the next snapshot would lack them",
    ),
    ("`/livez`, `/readyz` and CORS preflights need no token", "their clients have none"),
    (
        "descriptions have the states `LOADING` and `FAILED`, with the reason",
        "in TorchServe every worker that is not ready is `UNLOADING`",
    ),
    ("queues are also bounded in bytes", "a hundred large bodies can exceed the memory"),
    (
        "accepted requests are answered when the server stops, scales down or unregisters a model",
        "TorchServe kills the workers",
    ),
    (
        "a batch's delay begins when its oldest request arrives, and workers collect batches in parallel",
        "requests should not wait longer than configured",
    ),
    (
        "a `model-config.yaml` without a timeout does not override other settings",
        "in TorchServe it means 120 s, whatever is set elsewhere",
    ),
    ("messages and `--version` have the name `modelserver`", "this is not TorchServe"),
)
"""Differences to TorchServe that both sets have, and the reasons."""


def default_sets() -> str:
    """The text of the section."""
    rows = "".join(
        f"| `{key.name}` | {_cell(key.default)} | {_cell(key.torchserve)} | {key.summary} |\n"
        for key in KEYS.values()
        if key.torchserve is not None
    )
    rules = "".join(f"| {what} | {ours} | {reference} |\n" for what, ours, reference in _RULES)
    safe = "".join(f"| {what} | {why} |\n" for what, why in _SAFE)
    return (
        f"{_BEGIN}{rows}\n"
        "All other keys of TorchServe have its default in both sets. No key controls these differences:\n\n"
        f"| what | modelserver's | TorchServe's |\n|---|---|---|\n{rules}\n"
        "With TorchServe's defaults, these differences remain, besides those of the comparison above:\n\n"
        f"| what | why |\n|---|---|\n{safe}"
    )


def _cell(default: str) -> str:
    return f"`{default}`" if default else "empty"
