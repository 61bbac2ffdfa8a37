"""What tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver.models.options.resolve import ModelOptions, Registration, resolve_options
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.settings import Settings

if TYPE_CHECKING:
    from modelserver.models.settings.model_defaults import ModelDefaults


def resolve(
    registration: Registration | None = None,
    yaml: str = "",
    fallback: ModelDefaults | None = None,
    *,
    at_startup: bool = False,
    devices: int = 0,
    cpus: int = 4,
    sources: dict[str, str] | None = None,
    **settings: Any,
) -> ModelOptions:
    """The options of version 1.0 of the model ``noop``."""
    config, _ = parse_model_config(yaml)
    models = {"noop": {"1.0": fallback}} if fallback else {}
    return resolve_options(
        "noop",
        "1.0",
        registration or Registration(),
        config if yaml else None,
        Settings(models=models, **settings),
        at_startup=at_startup,
        device_count=devices,
        cpu_count=cpus,
        setting_sources=sources,
    )
