"""Request bodies before anybody decodes them: compressed ones are inflated, a form's field is looked up."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote_to_bytes

from python_multipart.multipart import parse_options_header

from modelserver.errors import BadRequest, ModelServerError, PayloadTooLarge

if TYPE_CHECKING:
    from starlette.requests import Request

# Of a form: its parts, the bytes of one part's headers, the options in one header.
_MAX_PARTS = 1000
_MAX_PART_HEAD = 8192
_MAX_OPTIONS = 16
# Bytes of a content type that may name a form, and of a field's value that are looked at.
_MAX_TYPE = 1024
_MAX_VALUE = 4096
# Of a query: more have no use, and take long.
MAX_PARAMETERS = 1024
# Bytes of a body that only names parameters.
MAX_PARAMETERS_BODY = 100 << 10
_DISPOSITION = re.compile(rb"^content-disposition:(.*)", re.IGNORECASE | re.MULTILINE)


class UnsupportedEncoding(ModelServerError):
    """A content encoding that is not understood."""

    status = 415
    type = "UnsupportedMediaTypeException"


def inflate(body: bytes, encoding: bytes, limit: int) -> bytes:
    """The body without its content encoding; at most ``limit`` bytes are ever made of it (F6).

    Raises:
        UnsupportedEncoding: neither gzip, deflate nor identity.
        PayloadTooLarge: more than ``limit`` bytes.
        BadRequest: the data is not what the encoding says.
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


def read_query(query: bytes) -> list[tuple[str, str]]:
    """Names and values of a URL's query, empty ones too. Raises BadRequest for more than there may be."""
    check_query(query)
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def check_query(query: bytes) -> None:
    """Raises BadRequest for more parameters than there may be."""
    count = query.count(b"&")
    if count >= MAX_PARAMETERS:
        raise BadRequest(f"The query has {count + 1} parameters, {MAX_PARAMETERS} are allowed.")


async def read_parameters_body(request: Request) -> bytes:
    """The body of a request whose body only names parameters. Raises PayloadTooLarge."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_PARAMETERS_BODY:
            raise PayloadTooLarge(f"The body of parameters is larger than {MAX_PARAMETERS_BODY} bytes.")
    return bytes(body)


def form_field(body: bytes, content_type: str, name: str) -> str | None:
    """A field's value in a form, the last one of several; None without one, or if the body is no form.

    A damaged form is no error here: the worker that decodes the body says what is wrong with it. What it
    would refuse for its size is not searched to the end.
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
    found = None
    # What follows the last delimiter is the form's end, or a part that is not complete.
    for part in (b"\r\n" + body).split(delimiter, _MAX_PARTS + 1)[1:-1]:
        head = part[:_MAX_PART_HEAD].partition(b"\r\n\r\n")[0]
        disposition = _DISPOSITION.search(head)
        if disposition and _name(disposition[1].strip()) == name:
            found = part[len(head) + 4 :]
    return found


def _name(disposition: bytes) -> bytes | None:
    if disposition.count(b";") > _MAX_OPTIONS:
        return None
    return parse_options_header(disposition)[1].get(b"name")
