"""The section of docs/migrating.md on the two sets of defaults; its first table is that of the keys."""

from __future__ import annotations

from modelserver.settings.keys import KEYS

_BEGIN = """
## Two sets of defaults

modelserver has defaults of its own, and those of TorchServe 0.12. TorchServe's count for what nobody sets

- with `compat_defaults=torchserve` in `config.properties`,
- with the flag `--compat-defaults torchserve`,
- with `TS_COMPAT_DEFAULTS=torchserve` in the environment, or
- when the server is started as `torchserve`, by the alias above, and none of these says `modelserver`.

The start says so (`Defaults: TorchServe's`), and `--print-settings` shows each value with its source. What is
set explicitly is the same in both.

| key | modelserver's | TorchServe's | meaning |
|---|---|---|---|
"""

_RULES = (
    (
        "a start without a named configuration file",
        "takes the models of the newest snapshot, and its own settings",
        "takes the newest snapshot as its configuration, `./config.properties` only where there is none",
    ),
    (
        "a start with a named one",
        "restores the newest snapshot too",
        "restores what that file has as `model_snapshot`, else nothing",
    ),
    ("`--models` beside a state", "are loaded too", "are not loaded"),
    (
        "an archive of a state that is not in the model store",
        "its model is listed as FAILED with the reason",
        "the server does not start",
    ),
    ("`GET /` at the inference address", '`{"status": "alive"}`', "405"),
    ("labels in the text of metrics", '`{Level="Host"}`', '`{Level="Host",}`'),
    (
        "handlers' metrics, without `metrics_config`",
        "are all kept",
        "`HandlerTime` and `PredictionTime` are kept, others with `model_metrics_auto_detect`",
    ),
    (
        "system metrics in a container with limits",
        "are of what the container may have",
        "are those of the machine",
    ),
)
"""What no key decides: what, modelserver's way, TorchServe's."""

_SAFE = (
    (
        "`allowed_urls` that nobody set lets in public hosts only, no `file://`",
        "who may register could make the server fetch from networks that only it reaches (CVE-2023-43654)",
    ),
    (
        "archives are unpacked with no `..`, links, devices or bombs; what clients name lies in the store",
        "an archive must not write or read elsewhere (CVE-2023-48299, CVE-2024-35198)",
    ),
    (
        "YAML without tags, weights by `weights_only`",
        "configuration and weights are data, not code (CVE-2022-1471)",
    ),
    (
        "tokens of 32 characters, compared in constant time; `/token` is that path only",
        "TorchServe's have 8, and any request with `/token` in it renews them",
    ),
    (
        "`key_file.json` goes with the server, not only with `--stop`",
        "a file of tokens that are good for nothing misleads",
    ),
    (
        "snapshots have no passwords, and are whole or not there",
        "they are files like others; a disk may fill",
    ),
    (
        "an archive that is there and cannot be loaded costs its own model, not those behind it",
        "the next snapshot would have forgotten them",
    ),
    ("`/livez`, `/readyz` and CORS preflights need no token", "whoever sends them has none"),
    (
        "descriptions say `LOADING` and `FAILED`, with the reason",
        "TorchServe calls every worker that is not ready `UNLOADING`",
    ),
    ("queues are bounded in bytes, too", "a hundred large bodies can be more than the memory"),
    (
        "stopping serves what was accepted; scaling down and unregistering finish what runs, answer the rest",
        "TorchServe kills the workers",
    ),
    (
        "a window begins with its oldest request, and workers gather batches side by side",
        "requests wait no longer than they were told to",
    ),
    (
        "a `model-config.yaml` that names no timeout hides nobody else's",
        "in TorchServe it means 120 s, whatever is said elsewhere",
    ),
    ("messages and `--version` say `modelserver`", "they would be untrue"),
)
"""What stays as it is, and why."""


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
        "All other keys of TorchServe have its default in both sets. What no key decides:\n\n"
        f"| what | modelserver's | TorchServe's |\n|---|---|---|\n{rules}\n"
        "Ours also with TorchServe's defaults, beside the differences that the comparison above found:\n\n"
        f"| what | why |\n|---|---|\n{safe}"
    )


def _shown(default: str) -> str:
    return f"`{default}`" if default else "empty"
