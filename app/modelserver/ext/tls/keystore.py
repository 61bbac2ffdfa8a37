"""PKCS12 keystores. Needs the package cryptography."""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from modelserver.surface.tls.context import Certificate


def read_keystore(content: bytes, password: str) -> Certificate:
    """The key and certificates of a keystore. Raises ValueError with a reason for the user."""
    try:
        key, leaf, others = pkcs12.load_key_and_certificates(content, password.encode() or None)
    except ValueError:
        raise ValueError("it is not a PKCS12 file, or keystore_pass is wrong") from None
    if key is None or leaf is None:
        raise ValueError("it has no private key with a certificate")
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in (leaf, *others))
    return Certificate(chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
