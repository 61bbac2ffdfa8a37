"""Request bodies that come compressed."""

from __future__ import annotations

import zlib

from modelserver.errors import BadRequest, ModelServerError, PayloadTooLarge


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
