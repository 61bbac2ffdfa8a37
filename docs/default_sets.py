"""The section of docs/migrating.md on the two sets of defaults; its first table is that of the keys."""

from __future__ import annotations

from modelserver.models.settings.keys import KEYS

_BEGIN = """
## Two sets of defaults

modelserver has its own defaults, and those of TorchServe 0.12. TorchServe's apply to everything not set
explicitly

- with `compat_defaults=torchserve` in `config.properties`,
- with the flag `--compat-defaults torchserve`,
- with `TS_COMPAT_DEFAULTS=torchserve` in the environment, or
- when the server is started as `torchserve`, by the alias above, and none of these says `modelserver`.

Startup says so (`Defaults: TorchServe's`), and `--print-settings` shows each value with its source. Explicit
settings are the same in both.

| key | modelserver's | TorchServe's | meaning |
|---|---|---|---|
"""

_RULES = (
    (
        "starting without naming a configuration file",
        "restores the models of the newest snapshot, not its settings",
        "uses the newest snapshot as the configuration, `./config.properties` only if there is none",
    ),
    (
        "starting with a configuration file",
        "restores the newest snapshot too",
        "restores that file's `model_snapshot`, if any",
    ),
    ("`--models` with a restored state", "are loaded too", "are not loaded"),
    (
        "a restored archive that is not in the model store",
        "its model is listed as FAILED with the reason",
        "the server does not start",
    ),
    ("`GET /` at the inference address", '`{"status": "alive"}`', "405"),
    ("a gRPC prediction that no queue takes: it is full, there are no workers", "UNAVAILABLE", "INTERNAL"),
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
"""What no key controls: what, modelserver's behaviour, TorchServe's."""

_SAFE = (
    (
        "if `allowed_urls` is not set, only public hosts are allowed, no `file://`",
        "registering could make the server fetch from networks that only it can reach (CVE-2023-43654)",
    ),
    (
        "archives may not contain `..`, links, devices or bombs; paths from clients must be in the store",
        "an archive must not write or read elsewhere (CVE-2023-48299, CVE-2024-35198)",
    ),
    (
        "YAML without tags, weights by `weights_only`",
        "configuration and weights are data, not code (CVE-2022-1471)",
    ),
    (
        "tokens have 32 characters and are compared in constant time; `/token` is only that path",
        "TorchServe's have 8, and any request with `/token` in it renews them",
    ),
    (
        "the server removes `key_file.json` when it stops, not only `--stop`",
        "a file of invalid tokens is misleading",
    ),
    (
        "snapshots contain no passwords, and are written atomically",
        "others may read them; the disk may fill up",
    ),
    (
        "an archive that cannot be loaded affects only its own model, not those after it",
        "the next snapshot would have forgotten them",
    ),
    ("`/livez`, `/readyz` and CORS preflights need no token", "their senders have none"),
    (
        "descriptions say `LOADING` and `FAILED`, with the reason",
        "TorchServe calls every worker that is not ready `UNLOADING`",
    ),
    ("queues are also bounded in bytes", "a hundred large bodies can exceed the memory"),
    (
        "stopping serves accepted requests; scaling down and unregistering finish or answer them",
        "TorchServe kills the workers",
    ),
    (
        "a window begins with its oldest request, and workers collect batches in parallel",
        "requests wait no longer than configured",
    ),
    (
        "a `model-config.yaml` without a timeout does not override other settings",
        "in TorchServe it means 120 s, whatever is set elsewhere",
    ),
    ("messages and `--version` say `modelserver`", "anything else would be untrue"),
)
"""What is the same with both sets, and why."""


def default_sets() -> str:
    """The text of the section."""
    rows = "".join(
        f"| `{key.name}` | {_shown(key.default)} | {_shown(key.torchserve)} | {key.summary} |\n"
        for key in KEYS.values()
        if key.torchserve is not None
    )
    rules = "".join(f"| {what} | {ours} | {theirs} |\n" for what, ours, theirs in _RULES)
    safe = "".join(f"| {what} | {why} |\n" for what, why in _SAFE)
    return (
        f"{_BEGIN}{rows}\n"
        "All other TorchServe keys have its default in both sets. Differences that no key controls:\n\n"
        f"| what | modelserver's | TorchServe's |\n|---|---|---|\n{rules}\n"
        "These differences remain with TorchServe's defaults, besides those that the comparison found:\n\n"
        f"| what | why |\n|---|---|\n{safe}"
    )


def _shown(default: str) -> str:
    return f"`{default}`" if default else "empty"
