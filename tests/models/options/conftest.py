from modelserver.models.options.resolve import CONFIG_FILE, DEFAULT, OptionResolver, Registration
from modelserver.models.options.yaml_file import parse_model_config
from modelserver.models.settings.settings import KEYS, Settings


def resolve(registration=None, yaml="", fallback=None, *, sources=None, **settings):
    """The options of a model; among the settings are the machine's devices, and whether it starts."""
    usual = {"at_startup": False, "devices": 0, "cpus": 4}
    machine = {name: settings.pop(name, value) for name, value in usual.items()}
    config, _ = parse_model_config(yaml)
    settings.setdefault("models", {"noop": {"1.0": fallback}} if fallback else {})
    changed, untouched = Settings(**settings), Settings()
    set_ = [name for name in KEYS if getattr(changed, name) != getattr(untouched, name)]
    sources = sources or {**dict.fromkeys(KEYS, DEFAULT), **dict.fromkeys(set_, CONFIG_FILE)}

    layers = registration or Registration(), config if yaml else None, changed
    return OptionResolver("noop", "1.0", *layers, sources=sources, **machine).resolve()
