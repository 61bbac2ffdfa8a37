import pytest

from modelserver.ext.grpc.http2.fields import HeaderBlock, read_block

USUAL = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a")]


def test_request_has_head_and_length_and_trailers_neither():
    fields = [*USUAL, (b"content-length", b"007")]

    assert read_block(USUAL, dict) == HeaderBlock(dict(USUAL), is_request=True)
    assert read_block(fields, dict) == HeaderBlock(dict(fields), is_request=True, length=7)

    for fields in ([], [(b"x-checksum", b"1")]):
        assert read_block(fields, dict) == HeaderBlock(is_trailers=True)


@pytest.mark.parametrize("more", [(b"te", b"Trailers"), (b"x-a", b" b\t\xff "), (b"x-a", b"")])
def test_fields_of_grpcs_clients_are_accepted(more):
    assert read_block([*USUAL, more], dict).is_request


@pytest.mark.parametrize(
    "fields",
    [
        [*USUAL[:2], (b":path", b"*"), (b"connection", b"close")],
        [*USUAL, (b"content-length", b"9" * 19)],
        [*USUAL, (b"content-length", b"\xb2")],
        [(b"connection", b"close")],
        [USUAL[0]],
    ],
)
def test_malformed_block_is_neither_request_nor_trailers(fields):
    assert read_block(fields, dict) == HeaderBlock()
