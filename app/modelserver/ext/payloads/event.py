"""CloudEvents of requests and responses, as KServe's agent sends them (kserve reference 10.2).

Unlike there, a response's event has the response's own content type and names model, path and batch, and
credentials in headers are never sent.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import quote

from modelserver.errors import ConfigError
from modelserver.models.settings.checks import header_fault
from modelserver.models.settings.settings import Settings

REQUEST = "org.kubeflow.serving.inference.request"
RESPONSE = "org.kubeflow.serving.inference.response"
HIDDEN = "********"

_TRACE_CONTEXT = {name.encode(): name for name in ("traceparent", "tracestate", "baggage")}
_CREDENTIAL = re.compile(r"\s*(basic|bearer|digest|negotiate)\s", re.IGNORECASE)
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


@dataclass(frozen=True, slots=True)
class Event:
    """One payload.

    ``happened`` is in seconds since 1970. ``headers`` are the request's as (name, value); :class:`Origin`
    selects some. ``about`` are further attributes: lower-case names, no empty values.
    """

    kind: str
    id: str
    happened: float
    content_type: str
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    about: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The attributes that all events of a server have in common.

    ``copied`` are the request headers to include, in lower case; ``annotations`` is a JSON object or empty.
    """

    source: str
    attributes: tuple[tuple[str, str], ...] = ()
    copied: frozenset[str] = frozenset()
    annotations: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Origin:
        """What the settings say. Raises ConfigError for a header or annotation that cannot be sent."""
        named = {
            "inferenceservicename": settings.payload_log_inference_service,
            "namespace": settings.payload_log_namespace,
            "component": settings.payload_log_component,
            "endpoint": settings.payload_log_endpoint,
        }
        names, notes = _listed(settings.payload_log_headers), _listed(settings.payload_log_annotations)
        for name in names:
            if fault := header_fault(name, "names of headers, separated by commas, are", "sent"):
                raise _wrong("payload_log_headers", name, fault)
        for item in notes:
            if "=" not in item:
                needed = "name=value items, separated by commas, are needed"
                raise _wrong("payload_log_annotations", item, needed)
        return cls(
            settings.payload_log_source or socket.gethostname(),
            tuple((name, value) for name, value in named.items() if value),
            frozenset(name.lower() for name in names),
            _json(dict(item.split("=", 1) for item in notes)) if notes else "",
        )

    def heads(self, event: Event, now: float) -> dict[str, str]:
        """The HTTP headers of the event, which is built at ``now``."""
        heads = {
            "ce-specversion": "1.0",
            "ce-id": event.id,
            "ce-type": event.kind,
            "ce-source": _printable(self.source),
            "ce-time": _time(event.happened),
            "ce-recordedtime": _time(now),
        }
        for name, value in (*self.attributes, *(event.about or {}).items()):
            heads[f"ce-{name}"] = _printable(value)
        heads["ce-metadata"] = _json(self._metadata(event.headers)) if self.copied else "{}"
        # Once for the sink's own spans, and once as CloudEvents' extension defines it.
        for name, value in trace_context(event.headers):
            heads[name] = value
            if name != "baggage":
                heads[f"ce-{name}"] = value
        if self.annotations:
            heads["ce-annotations"] = self.annotations
        if event.content_type:
            heads["content-type"] = _printable(event.content_type)
        return heads

    def _metadata(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
        metadata: dict[str, list[str]] = {}
        for name, value in headers:
            text = name.decode("latin-1").lower()
            if text in self.copied:
                # `X-Request-Id`, as Go's servers write it.
                canonical = "-".join(part.capitalize() for part in text.split("-"))
                metadata.setdefault(canonical, []).append(without_credentials(value.decode("latin-1")))
        return metadata


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    """The headers that W3C's Trace Context and Baggage define; they are passed on."""
    context: dict[str, str] = {}
    for name, value in headers:
        text = _TRACE_CONTEXT.get(name.lower())
        value_text = value.decode("latin-1")
        if text is not None and value_text.isascii() and value_text.isprintable():
            context[text] = f"{context[text]},{value_text}" if text in context else value_text
    return context.items()


def without_credentials(value: str) -> str:
    """A header's value; credentials are hidden, whatever the header's name."""
    return HIDDEN if _CREDENTIAL.match(value) else value


def _printable(value: str) -> str:
    """Percent-encodes percent signs and what a header cannot contain."""
    plain = value.isascii() and value.isprintable() and "%" not in value
    return value if plain else quote(value, safe=_PRINTABLE)


def _json(value: object) -> str:
    """JSON that reads the same whether or not percent signs in headers are decoded."""
    return json.dumps(value, separators=(",", ":")).replace("%", "\\u0025")


def _time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _listed(text: str | None) -> list[str]:
    """The items of a comma-separated list."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _wrong(key: str, value: str, reason: str) -> ConfigError:
    return ConfigError(f"Invalid configuration: {key}={value[:100]}: {reason}")
