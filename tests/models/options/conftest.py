"""What tests of this folder share."""

from typing import Any

from modelserver.models.options.resolve import ModelOptions, Registration, resolve_options
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.model_defaults import ModelDefaults
from modelserver.models.settings.settings import Settings


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
