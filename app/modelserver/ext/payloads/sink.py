"""The sink of the payload log: an HTTP server that gets one POST per event.

Not a usual HTTP client, as these take several times as much CPU time, and the sending threads share the
interpreter with the event loop. Responses are parsed with httptools.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings

# Bytes of a response that are read to reuse the connection.
_LONGEST_ANSWER = 1 << 16
# Bytes of a body up to which it is copied rather than sent separately.
_SMALL = 1 << 16
_PRINTABLE = re.compile(r"[!-~]+")


class SinkError(Exception):
    """An event could not be sent; the message is the reason."""


class Sink:
    """Where events are sent: an http(s) URL, whose query is never printed; ``timeout`` is seconds per
    event.
    """

    def __init__(self, url: str, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self.timeout = timeout
        self.tls = tls
        self.host = parts.hostname or ""
        self.port = parts.port or (80 if tls is None else 443)
        path = parts.path or "/"
        target = f"{path}?{parts.query}" if parts.query else path
        self.start = f"POST {target} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        self._text = f"{parts.scheme}://{parts.netloc}{path}"

    def __str__(self) -> str:
        return self._text

    @classmethod
    def of(cls, settings: Settings) -> Sink:
        """The sink that the settings name. Raises ConfigError if its URL or certificates cannot be used."""
        url = settings.payload_log_url or ""
        if fault := _fault_of(url):
            # Without the URL, which may contain a password.
            raise ConfigError(f"Invalid configuration: payload_log_url: {fault}")
        tls = None
        if urlsplit(url).scheme == "https":
            ca = settings.payload_log_ca_file
            try:
                tls = ssl.create_default_context(cafile=ca)
            except (OSError, ValueError) as error:
                reason = "a PEM file of certificates is needed"
                raise ConfigError(f"Invalid configuration: payload_log_ca_file={ca}: {reason}") from error
            if settings.payload_log_skip_verify:
                tls.check_hostname = False
                tls.verify_mode = ssl.CERT_NONE
        return cls(url, settings.payload_log_timeout, tls)


def _fault_of(url: str) -> str | None:
    needed = "http://host[:port][/path], or https, is needed"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return needed
    if parts.scheme in ("s3", "gs", "abfs"):
        return f"{needed}: events are not written to {parts.scheme}://"
    if not usable or _PRINTABLE.fullmatch(url) is None:
        return needed
    if parts.username is not None or parts.password is not None:
        return "user and password are not allowed"
    return None


class SinkConnection:
    """A connection to the sink, opened on demand and kept; not thread-safe."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._socket: socket.socket | None = None

    def post(self, heads: Mapping[str, str], body: bytes) -> None:
        """Sends one event, with headers in printable ASCII; reconnects once if the sink closed the
        connection.

        Raises SinkError if the sink cannot be reached, times out, or does not answer 2xx.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in heads.items())
        head = f"{self._sink.start}{lines}content-length: {len(body)}\r\n\r\n".encode("ascii", "replace")
        deadline = time.monotonic() + self._sink.timeout
        for is_last in (self._socket is None, True):
            try:
                status = self._status(head, body, deadline)
                break
            except TimeoutError as error:
                raise SinkError(f"no answer within {self._sink.timeout:g} s") from error
            except (OSError, httptools.HttpParserError) as error:
                if is_last:
                    raise SinkError(_reason(error)) from error
        if not 200 <= status < 300:
            raise SinkError(f"it answered {status}")

    def _status(self, head: bytes, body: bytes, deadline: float) -> int:
        sock, self._socket = self._socket, None
        if sock is None:
            sock = self._open(deadline)
        try:
            _allow(sock, deadline)
            if len(body) <= _SMALL:
                sock.sendall(head + body)
            else:
                sock.sendall(head)
                sock.sendall(body)
            answer = _Answer()
            answer.read(sock, deadline)
        except BaseException:
            sock.close()
            raise
        if answer.keeps:
            self._socket = sock
        else:
            sock.close()
        return answer.status

    def _open(self, deadline: float) -> socket.socket:
        sink = self._sink
        sock = socket.create_connection((sink.host, sink.port), _left(deadline))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sink.tls is None:
                return sock
            _allow(sock, deadline)
            return sink.tls.wrap_socket(sock, server_hostname=sink.host)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """Closes it; the next event opens it again."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()


class _Answer:
    """A response of the sink; ``keeps``: it was read completely and the connection can be reused."""

    def __init__(self) -> None:
        self.status = 0
        self.keeps = False
        self._is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def read(self, sock: socket.socket, deadline: float) -> None:
        """Reads the response, up to the size limit."""
        received = 0
        while not self._is_whole and received <= _LONGEST_ANSWER:
            _allow(sock, deadline)
            data = sock.recv(_LONGEST_ANSWER)
            if not data:
                break
            received += len(data)
            self._parser.feed_data(data)
        if not self.status:
            raise ConnectionResetError("it closed the connection without an answer")

    def on_headers_complete(self) -> None:
        """Called by the parser; the status of an interim response is ignored."""
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0

    def on_message_complete(self) -> None:
        self._is_whole = bool(self.status)
        self.keeps = self._is_whole and self._parser.should_keep_alive()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _allow(sock: socket.socket, deadline: float) -> None:
    """Gives the next operation the time that is left."""
    sock.settimeout(_left(deadline))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
