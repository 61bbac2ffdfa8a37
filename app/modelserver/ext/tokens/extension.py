"""The tokens of a server that requires some."""

from __future__ import annotations

import os
from dataclasses import replace

from modelserver.ext.tokens.key_file import KeyFile
from modelserver.ext.tokens.operator_tokens import take_from_environment
from modelserver.ext.tokens.rotation import Rotation
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On where tokens are required. The first one: processes that others start inherit the environment."""
    assert host.key_file is not None  # noqa: S101 - it would be off
    provided = take_from_environment(os.environ)
    rotation = Rotation(host.settings, provided, KeyFile(host.key_file))
    host.services = replace(host.services, tokens=rotation.keeper)
    host.run(rotation.watch)
    # Removes the file of generated tokens.
    host.closing.callback(rotation.keeper.close)
