"""Request bodies before anybody decodes them: compressed ones are inflated, a form's field is looked up."""

from __future__ import annotations

import re
import zlib
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header

from modelserver.errors import BadRequest, ModelServerError, PayloadTooLarge

# Of a form: its parts, the bytes of one part's headers, the options in one header.
_MAX_PARTS = 1000
_MAX_PART_HEAD = 8192
_MAX_OPTIONS = 16
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


def form_field(body: bytes, content_type: str, name: str) -> str | None:
    """A field's value in a form, the last one of several; None without one, or if the body is no form.

    A damaged form is no error here: the worker that decodes the body says what is wrong with it. What it
    would refuse for its size is not searched to the end.
    """
    kind, options = parse_options_header(content_type)
    value = None
    if kind == b"application/x-www-form-urlencoded":
        given = re.findall(rb"(?:^|&)" + re.escape(name.encode()) + rb"=([^&]*)", body)
        value = unquote_to_bytes(given[-1].replace(b"+", b" ")) if given else None
    elif kind == b"multipart/form-data" and (boundary := options.get(b"boundary")):
        value = _part(body, b"\r\n--" + boundary, name.encode())
    return None if value is None else value.decode("utf-8", "replace")


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
