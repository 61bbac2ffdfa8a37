import os
import subprocess
import sys

import msgspec
import pytest

from modelserver.ext.stores.address import StoreAddress
from modelserver.ext.stores.process import Message, Task


def start(tmp_path, **changes):
    task = Task(
        **{
            "url": "s3://models/x.mar",
            "address": StoreAddress("s3", "models", "x.mar"),
            "lists": False,
            "folder": str(tmp_path),
            "cache": str(tmp_path / "cache"),
            "cache_size": 1000,
            "max_bytes": 1000,
            **changes,
        }
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "modelserver.ext.stores"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true"},
    )
    process.stdin.write(msgspec.json.encode(task) + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.slow  # needs the libraries of object stores
def test_unreachable_store_is_reported(tmp_path):
    with start(tmp_path, lists=True) as process:
        message = msgspec.json.decode(process.stdout.readline(), type=Message)
        assert process.wait(10) == 0

    assert message.error == "DownloadFailed"
    assert message.text.startswith(
        "Failed to download archive from: s3://models/x.mar: the store could not be read"
    )
    assert "NoCredentialsError" in message.text or "EndpointConnectionError" in message.text


def test_it_ends_with_the_server(tmp_path):
    process = start(tmp_path)
    assert process.stdout is not None
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()
