from modelserver.models.options.resolve import Registration, resolve_options
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.settings import Settings


def resolve(
    registration=None,
    yaml="",
    fallback=None,
    *,
    at_startup=False,
    devices=0,
    cpus=4,
    sources=None,
    **settings,
):
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
