"""How a node gets its certificates: one to act as itself at the API server, one to serve its endpoint.

Both are asked for with CertificateSigningRequests, as kubelets do: the first with whatever credentials the agent was
started with (an administrator's kubeconfig or a bootstrap token), the second as the node. They are kept under the root
folder and asked for anew when they are about to expire, at a start and while the agent runs. Private keys never leave
the machine.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from drakkar.api.clock import Clock
from drakkar.api.errors import ApiError, DrakkarError, EnvironmentProblem, UsageError
from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.api.objects import name_of
from drakkar.api.tree import children, text
from drakkar.client.client import Client
from drakkar.client.kubeconfig import Config
from drakkar.client.transport import Unreachable
from drakkar.client.trust import trusting
from drakkar.plugin.files import write_atomically

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

logger = logging.getLogger(__name__)

CSR = Kind("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", False)
CLIENT_SIGNER, SERVING_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"
#: Begins the text that `drakkar token create` prints; what follows is base64 of JSON.
JOIN_PREFIX = "drakkar1."
#: A certificate is replaced when it has less than this left in seconds, or less than this share of its life.
_RENEW, _SHARE = 30 * 86400.0, 0.3
#: Seconds between two looks at certificates in use, at most and at least.
_LOOK_AGAIN, _SOON = 3600.0, 60.0
#: How the agent calls itself at the API server.
_AGENT = "drakkar-node"
#: Seconds for requests that are under way when the agent's certificate is renewed.
_IN_FLIGHT = 5.0
#: Seconds for somebody to sign, until the log says what is waited for, and between two looks.
_PATIENCE, _TOLD, _LOOK = 900.0, 10.0, 0.2


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's credentials: how it reaches the API server, TLS for its endpoint and the certificate shown there."""

    config: Config
    tls: ssl.SSLContext
    serving: bytes


def read_join(given: str) -> Config:
    """The configuration in a join text, or in a file that holds one. Raises UsageError."""
    if not given.startswith(JOIN_PREFIX):
        try:
            given = Path(given).expanduser().read_text().strip()
        except OSError as error:
            raise UsageError(
                f"--join: neither a join text nor a file ({error.strerror}); `drakkar token create` makes one"
            ) from None
    try:
        content = json.loads(base64.urlsafe_b64decode(given.removeprefix(JOIN_PREFIX)))
        server, ca, token = content["server"], content["ca"], content["token"]
        if not (isinstance(token, str) and urlsplit(server).scheme == "https" and urlsplit(server).hostname):
            raise ValueError
        return Config(server=server, ca=ca.encode(), token=token)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            "--join: the text is damaged; copy it whole, or make a new one by `drakkar token create`"
        ) from None


def write_join(server: str, ca: bytes, token: str) -> str:
    """The join text for a cluster."""
    content = json.dumps({"server": server, "ca": ca.decode(), "token": token}).encode()
    return JOIN_PREFIX + base64.urlsafe_b64encode(content).decode()


async def identity(config: Config, folder: Path, node: str, address: str, clock: Clock) -> Identity:
    """The node's identity, from ``folder`` (which exists) or asked for anew.

    Raises UsageError, EnvironmentProblem, ApiError, Unreachable.
    """
    if config.ca is None:
        raise UsageError("the kubeconfig names no certificate authority, by which the agent could know the API server")
    user = f"system:node:{node}"
    certificate, key = folder / "client.crt", folder / "client.key"
    if not _good(certificate, user, (), config.ca, clock.time()):
        client = Client(config.transport("drakkar-node-join"), clock=clock)
        try:
            usages = ["digital signature", "client auth"]
            await _obtain(client, clock, CLIENT_SIGNER, usages, certificate, key, user, ())
        finally:
            await client.close()
    own = replace(config, token=None, certificate=certificate.read_bytes(), key=key.read_bytes())
    serving, serving_key = folder / "serving.crt", folder / "serving.key"
    hosts = [address, node]
    if not _good(serving, user, hosts, config.ca, clock.time()):
        client = Client(own.transport(_AGENT), clock=clock)
        try:
            usages = ["digital signature", "server auth"]
            await _obtain(client, clock, SERVING_SIGNER, usages, serving, serving_key, user, hosts)
        finally:
            await client.close()
    context = trusting(config.ca.decode(), ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(serving, serving_key)
    return Identity(own, context, serving.read_bytes())


def connect(own: Identity, clock: Clock) -> Client:
    """A client that acts as the node."""
    return Client(own.config.transport(_AGENT), clock=clock)


async def keep(own: Identity, folder: Path, node: str, address: str, clock: Clock, client: Client) -> None:
    """Renew the node's certificates in time, until cancelled; what fails is tried again.

    ``client`` goes on with the new one, and so does the endpoint for whoever connects from then on.
    """
    pause = _SOON
    while True:
        due = min(_due(own.config.certificate or b""), _due(own.serving)) - clock.time()
        await clock.sleep(min(_LOOK_AGAIN, max(pause, due)))
        try:
            new = await identity(own.config, folder, node, address, clock)
            if new.serving != own.serving:
                own.tls.load_cert_chain(folder / "serving.crt", folder / "serving.key")
            if new.config.certificate != own.config.certificate:
                logger.info("node %s has a new certificate for the API server", node)
                old, client.transport = client.transport, new.config.transport(_AGENT)
                try:
                    await clock.sleep(_IN_FLIGHT)
                finally:
                    # Watches hold on to the old certificate until they are cut off; then they begin anew.
                    await old.close()
        except (DrakkarError, OSError) as error:
            logger.warning("certificates of node %s cannot be renewed yet: %s", node, error)
            # Every attempt leaves a request that somebody may have to look at.
            pause = min(2 * pause, _LOOK_AGAIN)
        else:
            pause = _SOON
            own = replace(own, config=new.config, serving=new.serving)


async def _obtain(
    client: Client,
    clock: Clock,
    signer: str,
    usages: list[str],
    certificate: Path,
    key: Path,
    user: str,
    hosts: Sequence[str],
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    obj: Object = {
        "apiVersion": CSR.api_version,
        "kind": CSR.kind,
        "metadata": {"generateName": "csr-"},
        "spec": {
            "request": base64.b64encode(_request(private, user, hosts)).decode(),
            "signerName": signer,
            "usages": usages,
        },
    }
    name = name_of(await client.create(CSR, obj))
    logger.info("certificate %s asked for (%s)", name, signer)
    pem = await signed(client, clock, name)
    private_pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_atomically(key, private_pem, 0o600)
    write_atomically(certificate, pem, 0o600)


async def signed(client: Client, clock: Clock, name: str) -> bytes:
    """The certificate that somebody signs for request ``name``, in PEM.

    The log says once what is waited for. Raises EnvironmentProblem if it is refused, or not signed in time.
    """
    begin, told = clock.monotonic(), False
    while clock.monotonic() < begin + _PATIENCE:
        try:
            request = await client.get(CSR, name)
        except Unreachable as error:
            logger.info("waiting for certificate %s: %s", name, error)
        except ApiError as error:
            raise EnvironmentProblem(f"certificate request {name}: {error}") from None
        else:
            for entry in children(request, "status", "conditions"):
                if entry.get("type") in ("Denied", "Failed"):
                    why = entry.get("message") or f"`kubectl describe csr {name}`"
                    raise EnvironmentProblem(f"certificate request {name} was refused ({entry['type']}): {why}")
            certificate = text(request, "status", "certificate")
            if certificate:
                return base64.b64decode(certificate)
            if not told and clock.monotonic() >= begin + _TOLD:
                # While it waits: the key lives in memory, and an ended agent has no use for its certificate.
                logger.warning("nobody has signed this node's request yet: `kubectl certificate approve %s`", name)
                told = True
        await clock.sleep(_LOOK)
    cure = "start the agent again, and approve its new request while it waits (the log names it)"
    raise EnvironmentProblem(f"nobody signed certificate request {name} within {_PATIENCE:g} s; {cure}")


def _request(key: EllipticCurvePrivateKey, user: str, hosts: Sequence[str]) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    names = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, user),
    ]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _due(pem: bytes) -> float:
    """When a certificate is to be replaced (Unix time)."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(pem)
    begin, end = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return end - min(_RENEW, (end - begin) * _SHARE)


def _good(path: Path, user: str, hosts: Sequence[str], authority: bytes, now: float) -> bool:
    """Whether a certificate is there, of this user and authority, good for these hosts and for some time to come."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509.oid import NameOID

    if not path.exists() or not path.with_suffix(".key").exists():
        return False
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) or (None,)
    if name is None or name.value != user:
        return False
    if now >= _due(path.read_bytes()):
        return False
    if not hosts:
        return True
    try:
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return all(_host(host) in list(known) for host in hosts)
