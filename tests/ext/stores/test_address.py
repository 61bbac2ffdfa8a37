import pytest

from modelserver.errors import BadRequest
from modelserver.ext.stores.address import StoreAddress, parse_address, signed_address


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://models/a/b.mar", StoreAddress("s3", "models", "a/b.mar")),
        ("S3://models/a/", StoreAddress("s3", "models", "a")),
        ("gs://models", StoreAddress("gs", "models")),
        ("az://container/x@1=2.mar", StoreAddress("az", "container", "x@1=2.mar")),
        ("hf://owner/name/x.mar", StoreAddress("hf", "owner/name", "x.mar")),
        ("hf://owner/name@v1.0/deep/x.mar", StoreAddress("hf", "owner/name@v1.0", "deep/x.mar")),
    ],
)
def test_url_names_bucket_and_key(url, place):
    assert parse_address(url) == place


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///key",
        "s3://b/key",
        "s3://key@models/x.mar",
        "s3://key:secret@models/x.mar",
        "s3://arn:aws:s3:us-east-1:1:accesspoint/x/y",
        "s3://models/x.mar?endpoint_url=http://evil",
        "s3://models/x.mar#1",
        "s3://models/../other/x.mar",
        "s3://models/%2e%2e/x.mar",
        "s3://models/./x.mar",
        "s3://models//x.mar",
        "s3://models/x*.mar",
        "s3://models/a\\b",
        "s3://models/a b.mar",
        "s3://models/zip::file:///etc/passwd",
        "s3://models/\x00",
        "s3://models/" + "x" * 1025,
        "az://container@account.dfs.core.windows.net/x.mar",
        "hf://owner",
        "hf://datasets/owner/name",
        "hf://owner/name@refs%2Fpr%2F1@x/x.mar",
        "zip://x.mar",
        "x.mar",
    ],
)
def test_nothing_else_can_be_named(url):
    with pytest.raises(BadRequest):
        parse_address(url)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://models.s3.eu-west-1.amazonaws.com/a/x.mar", ("models", "a/x.mar", "eu-west-1")),
        ("https://my.models.s3.amazonaws.com/x%2B1.mar", ("my.models", "x+1.mar", "")),
        ("https://s3.us-gov-west-1.amazonaws.com/models/x.mar", ("models", "x.mar", "us-gov-west-1")),
        ("https://s3-us-west-2.amazonaws.com/models/x.mar", ("models", "x.mar", "us-west-2")),
        ("http://127.0.0.1:9000/models/x.mar", ("models", "x.mar", "")),
    ],
)
def test_addresses_of_s3_are_recognised(url, place):
    result = signed_address(url, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"})
    assert (result.scheme, result.bucket, result.key, result.region) == ("s3", *place)


@pytest.mark.parametrize(
    "url",
    [
        "http://models.s3.eu-west-1.amazonaws.com/x.mar",
        "https://models.s3.eu-west-1.amazonaws.com.evil.com/x.mar",
        "https://evil.com/models.s3.amazonaws.com/x.mar",
        "https://models.s3.amazonaws.com/",
        "https://models.s3.amazonaws.com/x.mar?X-Amz-Signature=1",
        "https://models.s3.amazonaws.com/%2e%2e/x.mar",
        "https://user@models.s3.amazonaws.com/x.mar",
        "http://127.0.0.1:9000.evil.com/models/x.mar",
    ],
)
def test_nothing_is_signed_for_others(url):
    with pytest.raises(BadRequest):
        signed_address(url, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
