"""Every key of config.properties by name (reference 3.3, and the server's own)."""

from __future__ import annotations

from modelserver.models.settings.key import keys_of
from modelserver.models.settings.settings import Settings

KEYS = keys_of(Settings)

NOT_YET = frozenset({"cpu_launcher_args", "cpu_launcher_enable", "ipex_enable", "ipex_gpu_enable"})
"""Keys that are validated but not implemented yet."""
