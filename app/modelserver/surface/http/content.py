"""Request bodies before they are decoded: compressed ones are inflated, a form's field is looked up."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header

from modelserver.errors import BadRequest, ModelServerError, PayloadTooLarge

if TYPE_CHECKING:
    from starlette.requests import Request

# Limits of a form: its parts, the bytes of one part's headers, the options in one header.
_MAX_PARTS = 1000
_MAX_PART_HEAD = 8192
_MAX_OPTIONS = 16
# Bytes of a form's content type, and bytes that are read of a field's value.
_MAX_TYPE = 1024
_MAX_VALUE = 4096
# Bytes of a body that only has parameters.
MAX_PARAMETERS_BODY = 100 << 10
_DISPOSITION = re.compile(rb"^content-disposition:(.*)", re.IGNORECASE | re.MULTILINE)


class UnsupportedEncoding(ModelServerError):
    """A content encoding that is not supported."""

    status = 415
    type = "UnsupportedMediaTypeException"


def inflate(body: bytes, encoding: bytes, limit: int) -> bytes:
    """The body without its content encoding; never inflates it to more than ``limit`` + 1 bytes (F6).

    Raises:
        UnsupportedEncoding: neither gzip, deflate nor identity.
        PayloadTooLarge: more than ``limit`` bytes.
        BadRequest: the data does not match the encoding.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name in (b"gzip", b"x-gzip"):
        window = 31
    elif name == b"deflate":
        window = 15
    else:
        raise UnsupportedEncoding(
            f"The content encoding {name.decode('latin-1')!r} is not known: gzip, deflate and identity are."
        )
    decoder = zlib.decompressobj(window)
    try:
        content = decoder.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"The body is no {name.decode()} data: {error}") from error
    if len(content) > limit:
        raise PayloadTooLarge(f"The request body inflates to more than max_request_size={limit} bytes.")
    if not decoder.eof:
        raise BadRequest(f"The {name.decode()} data ends too early.")
    if decoder.unused_data:
        raise BadRequest(f"The body goes on after the end of its {name.decode()} data.")
    return content


async def read_parameters_body(request: Request) -> bytes:
    """The body of a request whose body only has parameters. Raises PayloadTooLarge."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_PARAMETERS_BODY:
            raise PayloadTooLarge(f"The body of parameters is larger than {MAX_PARAMETERS_BODY} bytes.")
    return bytes(body)


def form_field(body: bytes, content_type: str, name: str) -> str | None:
    """A field's value in a form, the last one of several; None without one, or if the body is not a form.

    A malformed form is not an error here: the worker that decodes the body reports it. A form that it would
    refuse for its size is not searched to the end.
    """
    if len(content_type) > _MAX_TYPE:
        return None
    kind, options = parse_options_header(content_type)
    value = None
    if kind == b"application/x-www-form-urlencoded":
        value = _urlencoded(body, name.encode())
    elif kind == b"multipart/form-data" and (boundary := options.get(b"boundary")):
        value = _part(body, b"\r\n--" + boundary, name.encode())
    return None if value is None else value.decode("utf-8", "replace")


def _urlencoded(body: bytes, name: bytes) -> bytes | None:
    mark = name + b"="
    begin = body.rfind(b"&" + mark) + 1
    if not begin and not body.startswith(mark):
        return None
    begin += len(mark)
    value = body[begin : begin + _MAX_VALUE].partition(b"&")[0]
    return unquote_to_bytes(value.replace(b"+", b" "))


def _part(body: bytes, delimiter: bytes, name: bytes) -> bytes | None:
    content = None
    # After the last delimiter comes the form's end or an incomplete part.
    for part in (b"\r\n" + body).split(delimiter, _MAX_PARTS + 1)[1:-1]:
        head = part[:_MAX_PART_HEAD].partition(b"\r\n\r\n")[0]
        disposition = _DISPOSITION.search(head)
        if disposition and _name(disposition[1].strip()) == name:
            content = part[len(head) + 4 :]
    return content


def _name(disposition: bytes) -> bytes | None:
    if disposition.count(b";") > _MAX_OPTIONS:
        return None
    return parse_options_header(disposition)[1].get(b"name")
