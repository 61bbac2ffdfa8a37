import asyncio
import socket
import time

import grpc
import pytest
from tests.odd_servers import answering, listening
from tests.tools.grpc_mirror import mirroring

from modelserver.errors import ConfigError
from modelserver.ext.recording.entries import code_of
from modelserver.surface.tls.context import Certificate
from modelserver.tools.grpc_client import messages_of
from modelserver.tools.replay.sender import Destination, send, send_grpc

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Batch-Id: b\r\nx-batch-size: 3\r\nother: 1\r\n\r\nok"


async def test_requests_are_sent_when_they_are_due(make_call):
    async def slow(reader, writer):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.write(OK)

    async with listening(slow) as port:
        destination = Destination("127.0.0.1", port)
        calls = [make_call(body=b"")] * 3
        many = await send(destination, calls, [0.0, 0.05, 0.1], connections=10, patience=5.0)
        one = await send(destination, calls[:2], [0.0, 0.0], connections=1, patience=5.0)

    assert [round(answer.sent, 2) for answer in many] == pytest.approx([0.0, 0.05, 0.1], abs=0.03)
    assert one[1].seconds > one[0].seconds + 0.15


async def test_request_without_answer_has_a_fault(make_call):
    async with listening(answering(b"", b"")) as port:
        destination = Destination("127.0.0.1", port)
        answers = await send(destination, [make_call(body=b"")] * 3, None, connections=2, patience=0.3)
        await asyncio.sleep(0)

    assert "no answer within 0.3 s" in {answer.fault for answer in answers}


def test_request_has_recorded_and_added_headers(make_call):
    destination = Destination.of("http://[::1]:80/prefix/", [("authorization", "Bearer x")], None)

    assert destination.request(make_call(target="/p?q=1", body=b"abc")) == (
        b"POST /prefix/p?q=1 HTTP/1.1\r\nhost: [::1]:80\r\ncontent-type: text/plain\r\n"
        b"authorization: Bearer x\r\ncontent-length: 3\r\n\r\nabc"
    )


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://x:99999", "http://x?y=1", "http://"])
def test_unusable_url_and_authorities_are_refused(url, tmp_path):
    with pytest.raises(ConfigError, match="--to="):
        Destination.of(url, [], None)
    with pytest.raises(ConfigError, match="--ca-file="):
        Destination.of("https://x", [], str(tmp_path / "none.pem"))


@pytest.fixture
def call(make_call):
    return lambda method="/mirror", **more: make_call(method=b"gRPC", target=method, **more)


async def test_calls_are_sent_when_they_are_due(call):
    with mirroring(delay=0.2) as (_, port):
        destination = Destination.of(f"http://127.0.0.1:{port}", [], None, over_grpc=True)
        many = await send_grpc(destination, [call()] * 3, [0.0, 0.05, 0.1], connections=10, patience=10.0)
        one = await send_grpc(destination, [call()] * 2, [0.0, 0.0], connections=1, patience=10.0)

    assert [list(messages_of(answer.body)) for answer in many] == [[b"question"]] * 3
    assert [(answer.status, code_of(answer.lines)) for answer in many] == [(200, 0)] * 3
    assert [round(answer.sent, 2) for answer in many] == pytest.approx([0.0, 0.05, 0.1], abs=0.03)
    assert one[1].seconds > one[0].seconds + 0.15


async def test_metadata_are_sent_and_failures_have_code_and_text(call):
    with mirroring() as (mirror, port):
        added = [("Authorization", "Bearer x")]
        destination = Destination.of(f"http://localhost:{port}", added, None, over_grpc=True)
        calls = [call("/refuse", headers=[(b"x-mark", b"1"), (b"x-trace-bin", b"\0\xff")])]
        (answer,) = await send_grpc(destination, calls, None, connections=1, patience=10.0)

    sent = {"x-mark": "1", "x-trace-bin": b"\0\xff", "authorization": "Bearer x"}
    assert sent.items() <= mirror.metadata[0].items()
    assert (answer.status, code_of(answer.lines), answer.body) == (404, 5, "nothing h\u00e9re".encode())


async def test_tls_server_needs_trusted_certificate(call, tmp_path):
    made = Certificate.throwaway(["localhost"])
    with mirroring(tls=grpc.ssl_server_credentials([(made.key, made.chain)])) as (_, port):
        file = tmp_path / "ca.pem"
        file.write_bytes(made.chain)
        url = f"https://localhost:{port}"
        destination = Destination.of(url, [], str(file), over_grpc=True)
        (good,) = await send_grpc(destination, [call()], None, connections=1, patience=10.0)
        untrusting = Destination.of(url, [], None, over_grpc=True)
        (bad,) = await send_grpc(untrusting, [call()], None, connections=1, patience=10.0)

    assert (good.status, good.fault) == (200, "")
    assert "CERTIFICATE_VERIFY_FAILED" in bad.fault


async def test_grpc_call_without_answer_has_a_fault(call):
    async def ask(port):
        destination = Destination("127.0.0.1", port)
        (answer,) = await send_grpc(destination, [call()], None, connections=1, patience=0.3)
        return answer

    async def talk(message):
        async def serve(_, writer):
            writer.write(message)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await ask(server.sockets[0].getsockname()[1])

    with socket.create_server(("127.0.0.1", 0)) as silent:
        waited = await ask(silent.getsockname()[1])
    refused, cut, odd = await ask(1), await talk(b""), await talk(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert refused.fault == "cannot connect: Connect call failed ('127.0.0.1', 1)"
    assert waited.fault == "no answer within 0.3 s"
    assert cut.fault == "the connection was closed before the end of the answer"
    assert odd.fault
    assert [answer.status for answer in (refused, waited, cut, odd)] == [0] * 4


async def test_an_interruption_ends_all(call):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        destination = Destination("127.0.0.1", silent.getsockname()[1])
        calls = send_grpc(destination, [call()] * 3, None, connections=2, patience=30.0)
        sending = asyncio.ensure_future(calls)
        await asyncio.sleep(0.2)
        began = time.monotonic()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.to_thread(lambda: None)

    assert time.monotonic() - began < 5
