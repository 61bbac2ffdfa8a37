import asyncio
import logging
import shutil
import ssl

import pytest
from tests.surface.tls.conftest import HTTPS, made, subject
from tests.waiting import until

from modelserver.ext.tls.certificate import load_certificate
from modelserver.ext.tls.renewal import Renewal
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

pytest.importorskip("cryptography")


@pytest.fixture
def files(tmp_path, authority):
    """The files with the server's key and certificate; at first those named ``first``."""
    key, chain = tmp_path / "server.key", tmp_path / "server.pem"
    put(authority.issue("first"), (key, chain))
    return key, chain


def put(issued, files):
    for source, target in zip(issued, files, strict=True):
        shutil.copy(source, target)


@pytest.fixture
def taken():
    return []


@pytest.fixture
def renewal(files, taken):
    settings = Settings(inference_address=HTTPS, private_key_file=files[0], certificate_file=files[1])
    made = Renewal(settings, load_certificate(settings), taken.append)
    made.take(made.look())
    return made


def look(renewal):
    renewal.take(renewal.look())


def test_unchanged_files_change_nothing(renewal, taken, files):
    look(renewal)
    put(files, (files[0].with_suffix(".k"), files[1].with_suffix(".c")))
    put((files[0].with_suffix(".k"), files[1].with_suffix(".c")), files)
    look(renewal)

    assert taken == []


def test_mismatched_pair_changes_nothing(renewal, taken, files, authority, caplog):
    key, chain = authority.issue("third")
    shutil.copy(chain, files[1])
    with caplog.at_level(logging.INFO, "modelserver.tls"):
        for _ in range(3):
            look(renewal)
        assert taken == []
        (line,) = [record.getMessage() for record in caplog.records]
        assert "key values mismatch; keeping the current certificate" in line.replace(")", "")
        shutil.copy(key, files[0])
        look(renewal)

    assert [(one.key, one.chain) for one in taken] == [(key.read_bytes(), chain.read_bytes())]
    assert "The certificate has changed" in caplog.text


@pytest.mark.parametrize("how", ["gone", "empty", "cut"])
def test_unusable_files_keep_the_certificate(renewal, taken, files, how, caplog):
    content = files[1].read_bytes()
    if how == "gone":
        files[1].unlink()
    else:
        files[1].write_bytes(b"" if how == "empty" else content[: len(content) // 2])
    look(renewal)
    look(renewal)
    assert len(caplog.records) == 1
    files[1].write_bytes(content)
    look(renewal)

    assert taken == []


async def test_files_are_looked_at_now_and_then(renewal, taken, files, authority):
    watching = asyncio.create_task(renewal.watch(0.01))
    put(authority.issue("fourth"), files)
    await until(lambda: taken)
    watching.cancel()


async def test_own_certificate_is_not_watched(taken):
    await Renewal(Settings(inference_address=HTTPS), Certificate(b"", b""), taken.append).watch(0.0)
    assert taken == []


def test_a_renewal_that_fails(authority):
    client = ssl.create_default_context(cafile=str(authority.file))
    server = made(authority, "old").server_context()
    wrong = Certificate(made(authority, "one").chain, made(authority, "two").key)
    with pytest.raises(ssl.SSLError):
        wrong.renew(server)

    assert subject(server, client) == "old"
