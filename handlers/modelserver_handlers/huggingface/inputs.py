"""What clients send: the input itself, or ``{"inputs": …, "parameters": {…}}`` as on the hub."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy

from modelserver_handlers.errors import BadInput
from modelserver_handlers.pictures.pictures import open_picture, picture_input
from modelserver_handlers.typed.reading import read_text

# Largest sample of a WAV file, by its bytes.
_LARGEST: Final = {2: 1 << 15, 4: 1 << 31}


def read_inputs(content: Any) -> tuple[Any, dict[str, Any]]:
    """The input, as it is, and the parameters. Raises BadInput."""
    if isinstance(content, (bytes, bytearray)) and content[:1] == b"{":
        try:
            content = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            return content, {}
    if not isinstance(content, Mapping) or "inputs" not in content:
        return content, {}
    parameters = content.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadInput("parameters must be an object")
    return content["inputs"], parameters


def text(content: Any) -> Any:
    """A text, or a pair of them as ``{"text": …, "text_pair": …}``."""
    if isinstance(content, Mapping) and {"text"} <= content.keys() <= {"text", "text_pair"}:
        return {name: read_text(each) for name, each in content.items()}
    return read_text(content)


def picture(content: Any) -> Any:
    """An image of Pillow from bytes, or base64 in JSON."""
    encoded = picture_input(content)
    if not isinstance(encoded, bytes):
        raise BadInput("a picture is needed: its bytes, or base64 in JSON")
    return open_picture(encoded, "RGB")


def sound(content: Any, rate: int, convert: Callable[[bytes, int], Any]) -> Any:
    """Samples from -1 to 1 at ``rate``, of all channels together, from bytes, or base64 in JSON.

    ``convert`` reads what is not a WAV file of this rate.
    """
    encoded = picture_input(content)
    if not isinstance(encoded, bytes) or not encoded:
        raise BadInput("sound is needed: the bytes of a file, or base64 in JSON")
    try:
        with wave.open(io.BytesIO(encoded)) as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            if file.getframerate() == rate and width in _LARGEST:
                samples = numpy.frombuffer(file.readframes(file.getnframes()), f"<i{width}")
                mixed = samples.reshape(-1, channels).mean(1) / _LARGEST[width]
                return mixed.astype(numpy.float32)
    except (wave.Error, EOFError, ValueError):
        pass
    try:
        return convert(encoded, rate)
    except ValueError as error:
        raise BadInput(f"the sound cannot be read: {error}") from None
