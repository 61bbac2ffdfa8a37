import pytest

from modelserver.models.settings.address import Address


@pytest.mark.parametrize(
    ("text", "expected", "visible"),
    [
        ("http://127.0.0.1:8080", Address("http", "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        ("HTTP://Host:0", Address("http", "Host", 0), "http://Host:0"),
        ("http://localhost", Address("http", "localhost", 81), "http://localhost:81"),
        ("https://localhost", Address("https", "localhost", 444), "https://localhost:444"),
        ("http://h:65534", Address("http", "h", 65534), "http://h:65534"),
        ("unix:/tmp/s.sock", Address("unix", path="/tmp/s.sock"), "unix:/tmp/s.sock"),
        ("http://[::]:8080", Address("http", "::", 8080), "http://[::]:8080"),
        ("https://[::1]", Address("https", "::1", 444), "https://[::1]:444"),
        ("http://[0:0:0:0:0:0:0:1]:80", Address("http", "::1", 80), "http://[::1]:80"),
        ("http://[FE80::1%eth0]:80", Address("http", "fe80::1%eth0", 80), "http://[fe80::1%eth0]:80"),
    ],
)
def test_addresses_are_parsed(text, expected, visible):
    """Scheme in any case, the given ports where none is named, and a text that is read back."""
    address = Address.parse(text, http_port=81, https_port=444)
    assert address == expected
    assert str(address) == visible
    assert Address.parse(visible) == expected


MALFORMED = """
    127.0.0.1:8080 http:// http://h:80/ http://::1:80 http://[::1:80 http://[localhost]:80 http://[1:2]:80
    http://[fe80::1%]:80 unix:x ftp://h http://h:x
"""


@pytest.mark.parametrize("text", ["", "http://a b", *MALFORMED.split()])
def test_malformed_addresses_are_refused(text):
    """The words are TorchServe's."""
    with pytest.raises(ValueError, match=r"^Invalid binding address: ") as error:
        Address.parse(text)
    assert str(error.value).endswith(text)


@pytest.mark.parametrize("port", ["65535", "99999", "9" * 5000])
def test_ports_out_of_range_are_refused(port):
    """65535 and above are refused, as TorchServe does; endless digits as well."""
    with pytest.raises(ValueError, match=r"^Invalid port number: http://h:"):
        Address.parse(f"http://h:{port}")


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.8.9.1:1", True),
        ("http://LocalHost:1", True),
        ("unix:/x", True),
        ("http://[::1]:1", True),
        ("http://[::ffff:127.0.0.1]:1", True),
        ("http://[::]:1", False),
        ("http://[::ffff:10.0.0.1]:1", False),
        ("http://[::1%lo]:1", True),
        ("http://[fe80::1%lo]:1", False),
        ("http://0.0.0.0:1", False),
        ("http://10.0.0.1:1", False),
        ("http://example.com:1", False),
        ("http://localhost.example.com:1", False),
    ],
)
def test_loopback_is_recognized(text, loopback):
    """Only 127.0.0.0/8, ::1, localhost and unix sockets are this machine's alone."""
    assert Address.parse(text).is_loopback is loopback
