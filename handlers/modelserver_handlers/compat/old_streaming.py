"""Answers in parts, under their name of old."""

from __future__ import annotations

from modelserver_handlers.compat.utilities import deprecated
from modelserver_handlers.streaming import send_intermediate_predict_response as _send

send_intermediate_predict_response = deprecated(
    "0.9", "ts.handler_utils.utils.send_intermediate_predict_response"
)(_send)
