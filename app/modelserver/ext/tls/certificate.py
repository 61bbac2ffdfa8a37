"""Loads the certificate from PEM files or a PKCS12 keystore, or creates a temporary one."""

from __future__ import annotations

from pathlib import Path

from modelserver.errors import ConfigError
from modelserver.models.settings.settings import Settings
from modelserver.surface.tls.context import Certificate

# The first bytes of Java's older keystores.
_JAVA = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_INSTALL = "the package cryptography is needed: pip install cryptography"


def load_certificate(settings: Settings) -> Certificate:
    """The certificate, checked; PEM files win over a keystore.

    Raises ConfigError naming an unusable file, or a setting without another that it needs.
    """
    if (kind := settings.keystore_type).upper() != "PKCS12":
        raise ConfigError(f"Invalid configuration: keystore_type={kind}: {_advice(settings.keystore)}")
    key, chain = settings.private_key_file, settings.certificate_file
    if (key is None) != (chain is None):
        name = "private_key_file" if key is None else "certificate_file"
        raise ConfigError(
            f"Invalid configuration: {name}=: private_key_file and certificate_file are needed together"
        )
    if key is not None and chain is not None:
        source = f"certificate_file={chain}, private_key_file={key}"
        certificate = _from_pem(key, chain)
    elif settings.keystore:
        source = f"keystore={settings.keystore}"
        certificate = _from_keystore(settings.keystore, settings.keystore_pass)
    else:
        source = "certificate_file="
        certificate = _of_its_own(settings)
    _try(certificate, source)
    if settings.tls_client_ca_file is None:
        return certificate
    authorities = _read("tls_client_ca_file", settings.tls_client_ca_file)
    certificate = Certificate(certificate.chain, certificate.key, authorities)
    _try(certificate, f"tls_client_ca_file={settings.tls_client_ca_file}")
    return certificate


def _try(certificate: Certificate, source: str) -> None:
    try:
        certificate.server_context()
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        raise ConfigError(f"Invalid configuration: {source}: cannot be used ({reason})") from None


def _from_pem(key_path: Path, chain_path: Path) -> Certificate:
    key, chain = _read("private_key_file", key_path), _read("certificate_file", chain_path)
    if b"PRIVATE KEY-----" not in key:
        raise _unusable("private_key_file", key_path, "a private key in PEM is needed")
    if b"ENCRYPTED" in key:
        reason = "the key has a password; remove it with openssl pkey, or use a keystore"
        raise _unusable("private_key_file", key_path, reason)
    if b"-----BEGIN CERTIFICATE-----" not in chain:
        raise _unusable("certificate_file", chain_path, "certificates in PEM are needed")
    return Certificate(chain, key)


def _from_keystore(path: Path, password: str) -> Certificate:
    content = _read("keystore", path)
    if content.startswith(_JAVA):
        raise _unusable("keystore", path, _advice(path))
    try:
        from modelserver.ext.tls.keystore import read_keystore  # noqa: PLC0415 - a package that few need
    except ImportError:
        raise _unusable("keystore", path, _INSTALL) from None
    try:
        return read_keystore(content, password)
    except ValueError as error:
        raise _unusable("keystore", path, str(error)) from None


def _advice(keystore: Path | None) -> str:
    """How to convert a keystore that only Java can read."""
    return (
        "only PKCS12 can be read, convert the keystore with keytool -importkeystore "
        f"-srckeystore {keystore or 'keystore.jks'} -destkeystore keystore.p12 -deststoretype PKCS12"
    )


def _of_its_own(settings: Settings) -> Certificate:
    addresses = (settings.inference_address, settings.management_address, settings.metrics_address)
    hosts = {address.host for address in addresses if address.scheme == "https"}
    if settings.enable_grpc_api and settings.enable_grpc_ssl:
        hosts |= {settings.grpc_inference_address, settings.grpc_management_address}
    try:
        return Certificate.throwaway(hosts)
    except ImportError:
        raise ConfigError(
            "Invalid configuration: certificate_file=: https needs it with private_key_file, or a keystore; "
            f"for a throw-away certificate {_INSTALL}"
        ) from None


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unusable(name, path, f"cannot be read ({error.strerror})") from None


def _unusable(name: str, path: Path, reason: str) -> ConfigError:
    return ConfigError(f"Invalid configuration: {name}={path}: {reason}")
