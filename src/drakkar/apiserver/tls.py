"""Certificates of an embedded plane: its own authority, the server, and clients.

Everything lies in one folder (``ca.crt``, ``ca.key``, ``server.crt``, ``server.key``), keys with
mode 0600, and is used again after a restart, so that kubeconfig files stay good. A server
certificate that is about to expire or lacks an address is made anew.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drakkar.api.errors import EnvironmentProblem

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

_CA_YEARS, _LEAF_YEARS = 10, 1
#: A certificate with less than this left is replaced.
_RENEW = datetime.timedelta(days=30)
_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
_ADDRESSES = ("127.0.0.1", "::1", "10.96.0.1")


@dataclass(frozen=True, slots=True)
class Pki:
    """The authority and where its files are; :func:`open_pki` makes one."""

    folder: Path
    ca_certificate: bytes

    def server_context(self) -> ssl.SSLContext:
        """TLS for the server: HTTP/1.1 only, client certificates welcome but not demanded."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.ca_certificate.decode())
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        context.verify_mode = ssl.CERT_OPTIONAL
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        return context

    def agents_context(self) -> ssl.SSLContext:
        """TLS from the server to the agents of nodes: both sides show certificates of this authority."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=self.ca_certificate.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            # OpenSSL takes a certificate and its key from files only.
            certificate, key = self.client("kube-apiserver-kubelet-client")
            files = Path(folder, "client.crt"), Path(folder, "client.key")
            for file, data in zip(files, (certificate, key), strict=True):
                write_private(file, data)
            context.load_cert_chain(*files)
        return context

    def agent_context(self, name: str, hosts: Sequence[str]) -> ssl.SSLContext:
        """TLS for the endpoint of an agent that is reached by these names: clients must show a certificate."""
        from cryptography.x509.oid import ExtendedKeyUsageOID

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.ca_certificate.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            certificate, key = _issue(self.folder, name, ("system:nodes",), ExtendedKeyUsageOID.SERVER_AUTH, hosts)
            files = Path(folder, "agent.crt"), Path(folder, "agent.key")
            for file, data in zip(files, (certificate, key), strict=True):
                write_private(file, data)
            context.load_cert_chain(*files)
        return context

    def hosts(self) -> frozenset[str]:
        """Names and addresses that the server's certificate is good for."""
        from cryptography import x509

        certificate = x509.load_pem_x509_certificate((self.folder / "server.crt").read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return frozenset(str(host.value) for host in found)

    def sign(self, request: bytes, server: bool) -> bytes:
        """A certificate (PEM) for a request (PEM) that somebody has looked at; for a server or for a client."""
        return _sign(self.folder, request, server)

    def client(self, user: str, groups: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """A new client certificate (PEM) of this user, and its key."""
        from cryptography.x509.oid import ExtendedKeyUsageOID

        return _issue(self.folder, user, groups, ExtendedKeyUsageOID.CLIENT_AUTH)


def open_pki(folder: str | os.PathLike[str], hosts: Sequence[str] = ()) -> Pki:
    """The authority in this folder, made when there is none; the server's certificate is also good for ``hosts``.

    Raises EnvironmentProblem when the folder cannot be used.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / "ca.crt").exists() or not (folder / "ca.key").exists():
            _make_authority(folder)
        certificate = (folder / "ca.crt").read_bytes()
        wanted = [*_NAMES, *_ADDRESSES, *hosts]
        if not _good(folder / "server.crt", wanted, certificate):
            from cryptography.x509.oid import ExtendedKeyUsageOID

            made, key = _issue(folder, "kube-apiserver", (), ExtendedKeyUsageOID.SERVER_AUTH, wanted)
            write_private(folder / "server.crt", made)
            write_private(folder / "server.key", key)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EnvironmentProblem(
            f"cannot use the certificates in {folder}: {why}; make the folder writable, or remove it to have new ones"
        ) from None
    return Pki(folder, certificate)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file of mode 0600 at once: readers see the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_kubeconfig(
    path: str | os.PathLike[str],
    url: str,
    pki: Pki,
    *,
    user: str = "drakkar:admin",
    groups: Sequence[str] = ("system:masters",),
    name: str = "drakkar",
) -> None:
    """A kubeconfig (mode 0600) with a new client certificate of this user. Raises EnvironmentProblem."""
    certificate, key = pki.client(user, groups)

    def packed(data: bytes) -> str:
        return base64.b64encode(data).decode()

    text = f"""apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {url}
    certificate-authority-data: {packed(pki.ca_certificate)}
users:
- name: {name}
  user:
    client-certificate-data: {packed(certificate)}
    client-key-data: {packed(key)}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {name}
    namespace: default
current-context: {name}
"""
    try:
        write_private(Path(path), text.encode())
    except OSError as error:
        raise EnvironmentProblem(f"cannot write the kubeconfig {path}: {error.strerror}") from None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _make_authority(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "drakkar-ca")])
    begin = _now() - datetime.timedelta(minutes=5)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=365 * _CA_YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(folder / "ca.key", _pem(key))
    write_private(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _issue(
    folder: Path, name: str, organizations: Sequence[str], purpose: x509.ObjectIdentifier, hosts: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([_host(host) for host in hosts]) if hosts else None
    return _certify(folder, subject, key.public_key(), purpose, names), _pem(key)


def _sign(folder: Path, request: bytes, server: bool) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    asked = x509.load_pem_x509_csr(request)
    key = asked.public_key()
    if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the request is not signed by its own elliptic curve key")
    try:
        names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = None
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    return _certify(folder, asked.subject, key, purpose, names)


def _certify(
    folder: Path,
    subject: x509.Name,
    key: EllipticCurvePublicKey,
    purpose: x509.ObjectIdentifier,
    names: x509.SubjectAlternativeName | None,
) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("ca.key is not an elliptic curve key")
    begin = _now() - datetime.timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=365 * _LEAF_YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _good(path: Path, hosts: Sequence[str], authority: bytes) -> bool:
    """Whether a certificate of ours is still good for all hosts."""
    from cryptography import x509

    if not path.exists() or not path.with_suffix(".key").exists():
        return False
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    if certificate.not_valid_after_utc - _now() < _RENEW:
        return False
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:
        return False
    return all(_host(host) in list(names) for host in hosts)
