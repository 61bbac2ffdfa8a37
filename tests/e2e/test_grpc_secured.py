"""gRPC over TLS, and with tokens (reference 3.3, 16)."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from tests.e2e.grpc_client import INFERENCE, MANAGEMENT, PATIENCE, ending, grpc_server, manage, predict, stub
from tests.e2e.serving import serving, wait_until

from modelserver.ext.grpc.messages import message

throwaway = pytest.importorskip("modelserver.surface.tls.throwaway", reason="cryptography is not installed")

sys.path.append(str(Path(__file__).parents[1] / "tls"))


@pytest.fixture(scope="module")
def certificate():
    """One for this machine, signed by itself."""
    return throwaway.make_certificate({"127.0.0.1"})


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store, certificate):
    """A server that asks for tokens, and speaks gRPC over TLS alone."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "chain.pem").write_bytes(certificate.chain)
    (folder / "key.pem").write_bytes(certificate.key)
    settings = {
        "enable_grpc_ssl": "true",
        "certificate_file": folder / "chain.pem",
        "private_key_file": folder / "key.pem",
        "token_authorization": "always",
        "load_models": "echo.mar",
        "default_workers_per_model": 1,
    }
    with serving(grpc_server(folder, model_store, **settings)) as started:
        yield started


@pytest.fixture
def tokens(server):
    """Scope to a header that opens it."""
    return {scope: (("authorization", f"Bearer {token}"),) for scope, token in server.tokens().items()}


@pytest.fixture
def connect(server, certificate):
    """Connections over TLS."""
    made = []

    def connect(side):
        credentials = grpc.ssl_channel_credentials(certificate.chain)
        made.append(grpc.secure_channel(f"127.0.0.1:{server.settings[f'grpc_{side}_port']}", credentials))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def test_tokens(connect, tokens):
    """Each port asks for its own token; without it a call is PERMISSION_DENIED, whatever it asks for."""
    inference = stub(connect("inference"), f"{INFERENCE}InferenceAPIsService")
    management = stub(connect("management"), f"{MANAGEMENT}ManagementAPIsService")
    request, listed = predict("echo", data=b"x"), manage("ListModels")
    denied = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
    opened = inference.Predictions(request, metadata=tokens["inference"])

    assert opened.prediction == b"x"
    assert "echo" in management.ListModels(listed, metadata=tokens["management"]).msg
    for wrong in (None, tokens["management"], (("authorization", "Bearer x"),)):
        call = ending(lambda wrong=wrong: inference.Predictions(request, metadata=wrong))
        assert call == ("PERMISSION_DENIED", denied)
    wrong = ending(lambda: management.ListModels(listed, metadata=tokens["inference"]))
    assert wrong == ("PERMISSION_DENIED", denied)
    streamed = inference.StreamPredictions(request)
    assert ending(lambda: list(streamed)) == ("PERMISSION_DENIED", denied)


def test_probes(connect):
    """Health and readiness are told without a token."""
    to = connect("inference")
    check = message("grpc.health.v1.HealthCheckRequest")()

    assert stub(to, "grpc.health.v1.Health").Check(check).status == 1
    ready = message("inference.ServerReadyRequest")()
    assert stub(to, "inference.GRPCInferenceService").ServerReady(ready).ready


def test_in_the_clear(server):
    """Who speaks no TLS gets nothing."""
    with closing(grpc.insecure_channel(f"127.0.0.1:{server.settings['grpc_inference_port']}")) as to:
        inference = stub(to, f"{INFERENCE}InferenceAPIsService")

        assert (
            ending(lambda: inference.Ping(message("google.protobuf.Empty")(), timeout=2))[0] == "UNAVAILABLE"
        )


@pytest.mark.slow
def test_client_certificates(tmp_path, model_store):
    """With an authority for clients only those who show a certificate of it are heard, as over REST."""
    from tests.surface.tls.certificates import Authority

    authority = Authority(tmp_path)
    key, chain = authority.issue("server")
    settings = {
        "enable_grpc_ssl": "true",
        "certificate_file": chain,
        "private_key_file": key,
        "tls_client_ca_file": authority.file,
    }
    with serving(grpc_server(tmp_path / "home", model_store, **settings)) as server:
        target = f"127.0.0.1:{server.settings['grpc_inference_port']}"
        own_key, own_chain = (file.read_bytes() for file in authority.issue("client"))
        trusted = authority.file.read_bytes()
        request = message("google.protobuf.Empty")()
        known = grpc.ssl_channel_credentials(trusted, own_key, own_chain)
        with grpc.secure_channel(target, known) as to:
            assert stub(to, f"{INFERENCE}InferenceAPIsService").Ping(request).health
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted)) as to:
            inference = stub(to, f"{INFERENCE}InferenceAPIsService")
            assert ending(lambda: inference.Ping(request, timeout=5))[0] == "UNAVAILABLE"


@pytest.mark.slow
def test_changed_files_are_taken_up(server, tokens):
    """Connections from then on are shown the new certificate, on both ports, without a restart."""
    renewed = throwaway.make_certificate({"127.0.0.1"})
    server.settings["private_key_file"].write_bytes(renewed.key)
    server.settings["certificate_file"].write_bytes(renewed.chain)
    credentials = grpc.ssl_channel_credentials(renewed.chain)
    wait_until(lambda: "The certificate has changed" in server.home.output(), "the files are looked at")
    for side, service in (("inference", "InferenceAPIsService"), ("management", "ManagementAPIsService")):
        target = f"127.0.0.1:{server.settings[f'grpc_{side}_port']}"
        with grpc.secure_channel(target, credentials) as channel:
            grpc.channel_ready_future(channel).result(PATIENCE)
            if side == "inference":
                request = stub(channel, f"{INFERENCE}{service}").Predictions
                opened = request(predict("echo", data=b"x"), metadata=tokens["inference"])
                assert opened.prediction == b"x"
