import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.archives.conftest import allowing

from modelserver.errors import ModelNotFound
from modelserver.models.archives.urls import UrlPolicy, leaves_its_place, scheme

LISTED = allowing(r"https://good\.com/.*", "file:///models/.*")
DEFAULT = UrlPolicy()


def refusal_of(policy, url):
    with pytest.raises(ModelNotFound) as caught:
        policy.check(url)
    assert caught.value.message.startswith(f"Given URL {url} does not match any allowed URL(s)")
    return caught.value.message


def test_listed_urls_are_allowed():
    """A URL that one of the operator's patterns matches, in whatever case; an empty list allows none."""
    for url in ("https://good.com/x.mar", "HTTPS://GOOD.COM/sub/x.mar?v=1", "file:///models/x.mar"):
        LISTED.check(url)
    refusal_of(allowing(), "https://good.com/x.mar")


@pytest.mark.parametrize(
    "url",
    [
        "http://good.com/x.mar",
        "https://good.com.evil.com/x.mar",
        "https://good.com@evil.com/x.mar",
        "https://evil.com/https://good.com/x.mar",
        "https://evil.com/#https://good.com/x.mar",
        "https://evil.com/?https://good.com/x.mar",
        " https://good.com/x.mar",
        "https://good.com:444/x.mar",
        "file:///etc/passwd",
    ],
)
def test_patterns_match_the_whole_url(url):
    """F62: a URL that only begins, ends or looks like an allowed one is refused in TorchServe's words."""
    assert refusal_of(LISTED, url).endswith("allowed URL(s)")


@pytest.mark.parametrize(
    "url",
    [
        "https://user@good.com/x.mar",
        "https://user:secret@good.com/x.mar",
        "https://good.com\\@evil.com/x.mar",
        "https://good.com/a b.mar",
        "https://good.com/%2e%2e/x.mar",
        "https://good.com/%252e%252e/x.mar",
        "https://good.com/../x.mar",
        "https://good.com/\tx.mar",
        "https://good.com/\ud800.mar",
    ],
)
def test_disguised_urls_are_refused(url):
    """F62: credentials, backslashes, blanks and '..' are refused though a pattern allows everything."""
    refusal_of(allowing("(?s).*"), url)


def test_default_is_torchserves_pattern():
    """F62: TorchServe's default: http(s) may be tried, and file:// needs the operator's word."""
    assert [pattern.pattern for pattern in DEFAULT.allowed] == ["file://.*|http(s)?://.*"]
    assert not DEFAULT.operator_set

    DEFAULT.check("https://anywhere.example/x.mar")
    DEFAULT.check("http://anywhere.example/x.mar")
    assert refusal_of(DEFAULT, "file:///tmp/x.mar").endswith(
        "file:// needs an allowed_urls in the configuration"
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h/x", "https"),
        ("FILE:///x", "file"),
        ("s3://b/x", "s3"),
        ("x.mar", None),
        ("a/b", None),
        ("x:y", None),
    ],
)
def test_scheme_is_read_in_lower_case(url, expected):
    assert scheme(url) == expected


@given(st.text("./%2eE5", max_size=20))
def test_double_dots_are_recognized(url):
    """F62: a URL that contains '..' as it stands always leaves its place."""
    assert leaves_its_place(url) or ".." not in url
