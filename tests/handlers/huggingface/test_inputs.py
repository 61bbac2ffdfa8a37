import base64

import pytest
from tests.handlers.huggingface.bench import wav

from modelserver_handlers.errors import BadInput
from modelserver_handlers.huggingface import inputs


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text", ("text", {})),
        (b"12.0", (b"12.0", {})),
        (b'{"inputs": "a", "parameters": {"top_k": 1}}', ("a", {"top_k": 1})),
        (b'{"inputs": ', (b'{"inputs": ', {})),
        ({"inputs": "a", "parameters": None}, ("a", {})),
        ({"b64": "YQ=="}, ({"b64": "YQ=="}, {})),
    ],
)
def test_inputs_are_separated_from_parameters(content, expected):
    assert inputs.read_inputs(content) == expected


def test_parameters_are_an_object():
    with pytest.raises(BadInput, match="parameters must be an object"):
        inputs.read_inputs({"inputs": "a", "parameters": [1]})


def test_sound_is_read():
    def convert(encoded, rate):
        if encoded == b"none":
            raise ValueError("ffmpeg says no")
        return [len(encoded), rate]

    file = wav([16384, -16384, 8192, 0], channels=2)

    assert inputs.sound(file, 10, convert).tolist() == [0.0, 0.125]
    assert inputs.sound({"b64": base64.b64encode(file).decode()}, 10, convert).tolist() == [0.0, 0.125]
    assert inputs.sound(wav([1 << 30], width=4), 10, convert).tolist() == [0.5]
    assert inputs.sound(file, 20, convert) == [len(file), 20]
    with pytest.raises(BadInput, match="the sound cannot be read: ffmpeg says no"):
        inputs.sound(b"none", 10, convert)
    with pytest.raises(BadInput, match="sound is needed"):
        inputs.sound([1.0], 10, convert)


def test_text_may_be_a_pair():
    assert inputs.text({"text": "a", "text_pair": b"b"}) == {"text": "a", "text_pair": "b"}
    with pytest.raises(BadInput):
        inputs.text({"text": "a", "padding": "longest"})
