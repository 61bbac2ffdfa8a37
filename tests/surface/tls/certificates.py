import ipaddress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

PASSWORD = "changeit"


class Authority:
    """Signs certificates; its own is the file ``ca.pem`` of the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._sign("authority", self._key.public_key(), ca=True)
        self.file = self._write("ca.pem", self._own.public_bytes(Encoding.PEM))

    def issue(self, name: str, *, old_form: bool = False) -> tuple[Path, Path]:
        """The files of a private key and of a certificate for ``localhost`` and 127.0.0.1.

        ``old_form``: RSA in the form that OpenSSL wrote before PKCS8.
        """
        key, certificate = self._issue(name, rsa_key=old_form)
        form = PrivateFormat.TraditionalOpenSSL if old_form else PrivateFormat.PKCS8
        return (
            self._write(f"{name}.key", key.private_bytes(Encoding.PEM, form, NoEncryption())),
            self._write(f"{name}.pem", certificate.public_bytes(Encoding.PEM)),
        )

    def keystore(self, name: str, password: str = PASSWORD) -> Path:
        key, certificate = self._issue(name)
        encryption = BestAvailableEncryption(password.encode())
        content = pkcs12.serialize_key_and_certificates(
            name.encode(), key, certificate, [self._own], encryption
        )
        return self._write(f"{name}.p12", content)

    def locked_key(self, name: str) -> tuple[Path, Path]:
        key, certificate = self._issue(name)
        locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
        return (
            self._write(f"{name}.key", locked),
            self._write(f"{name}.pem", certificate.public_bytes(Encoding.PEM)),
        )

    def _issue(self, name: str, *, rsa_key: bool = False) -> tuple[Any, x509.Certificate]:
        key = rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())
        return key, self._sign(name, key.public_key(), ca=False)

    def _sign(self, name: str, public_key, *, ca: bool) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named("authority"))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(self._key, SHA256())
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
