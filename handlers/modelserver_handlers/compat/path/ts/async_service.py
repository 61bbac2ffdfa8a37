"""Not offered: importing this says why."""

from __future__ import annotations

from modelserver_handlers.compat.absent import refuse

refuse(__name__)
