"""Certificates of nodes: requests that a node may make for itself are approved and signed at once.

A request of signer ``kubernetes.io/kube-apiserver-client-kubelet`` comes from a bootstrap token, from an administrator
or from the node itself; one of ``kubernetes.io/kubelet-serving`` from the node itself. Everything else, other signers
too, is left to people. Upstream's controller approves the former and leaves the latter to others.

The authority is that of the API server as well, so a node gets no certificate by whose names it could pass for the
server or another node: the only name is its own. Addresses are taken on trust, nobody here knows a node's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drakkar.api.clock import Clock
from drakkar.api.formats import dns_subdomain
from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.api.objects import condition_is, name_of
from drakkar.api.tree import child, text, texts
from drakkar.client.cache import Cache, Caches
from drakkar.client.clock import timestamp
from drakkar.client.queue import KeyQueue
from drakkar.client.writes import Patch, Write

if TYPE_CHECKING:
    from cryptography import x509

CSR = Kind("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", False)
CLIENT_SIGNER, SERVING_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"
_NODE, _NODES = "system:node:", "system:nodes"
_USAGES = {
    CLIENT_SIGNER: {"digital signature", "key encipherment", "client auth"},
    SERVING_SIGNER: {"digital signature", "key encipherment", "server auth"},
}

#: First labels of the names under which clients look for the API server.
_OF_THE_SERVER = {"kubernetes", "localhost"}

#: Makes a certificate (PEM) from a request (PEM); ``server``: for a server, else for a client.
Sign = Callable[[bytes, bool], bytes]


@dataclass(frozen=True, slots=True)
class _Asked:
    user: str
    organizations: list[str]
    names: frozenset[str]
    addresses: int


class Certificates:
    """Signs with ``sign``, which holds the authority's key."""

    name = "certificates"

    def __init__(self, clock: Clock, sign: Sign):
        self._clock = clock
        self._sign = sign

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch requests."""
        self._requests: Cache = caches.of(CSR)
        self._requests.subscribe(lambda _, __, new: queue.add(name_of(new)))

    def reconcile(self, key: str) -> Sequence[Write]:
        """Approve first, then sign what is approved."""
        request = self._requests.get("", key)
        if request is None or text(request, "status", "certificate"):
            return []
        if any(condition_is(request, kind) for kind in ("Denied", "Failed")):
            return []
        signer = text(request, "spec", "signerName")
        if signer not in _USAGES:
            return []
        if not condition_is(request, "Approved"):
            return [self._approval(request)] if allowed(request) else []
        pem = self._sign(base64.b64decode(text(request, "spec", "request")), signer == SERVING_SIGNER)
        body = {"status": {"certificate": base64.b64encode(pem).decode()}}
        return [Patch(CSR, "", key, body, subresource="status")]

    def _approval(self, request: Object) -> Patch:
        stamp = timestamp(self._clock.time())
        entry = {
            "type": "Approved",
            "status": "True",
            "reason": "AutoApproved",
            "message": "a node asked for a certificate of its own",
            "lastUpdateTime": stamp,
            "lastTransitionTime": stamp,
        }
        conditions = [*child(request, "status").get("conditions", []), entry]
        version = request["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}
        return Patch(CSR, "", name_of(request), body, subresource="approval")


def allowed(request: Object) -> bool:
    """Whether the requester may have this certificate without anybody looking at it."""
    spec = child(request, "spec")
    signer = text(spec, "signerName")
    asked = _asked(text(spec, "request"))
    if asked is None or asked.organizations != [_NODES]:
        return False
    node = asked.user.removeprefix(_NODE)
    if node == asked.user or dns_subdomain(node) or set(texts(spec, "usages")) - _USAGES[signer]:
        return False
    groups, user = texts(spec, "groups"), text(spec, "username")
    itself = user == asked.user and _NODES in groups
    if signer == SERVING_SIGNER:
        own = asked.names <= {node} and not (asked.names and node.partition(".")[0] in _OF_THE_SERVER)
        some = bool(asked.names) or asked.addresses > 0
        return itself and own and some and "server auth" in texts(spec, "usages")
    if asked.names or asked.addresses or "client auth" not in texts(spec, "usages"):
        return False
    return itself or "system:bootstrappers" in groups or "system:masters" in groups


def _asked(encoded: str) -> _Asked | None:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        request = x509.load_pem_x509_csr(base64.b64decode(encoded))
    except ValueError:
        return None
    if not request.is_signature_valid:
        return None
    names = [str(each.value) for each in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    organizations = request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    hosts = _hosts(request)
    if len(names) != 1 or hosts is None:
        return None
    return _Asked(names[0], [str(each.value) for each in organizations], *hosts)


def _hosts(request: x509.CertificateSigningRequest) -> tuple[frozenset[str], int] | None:
    """The names and how many addresses are asked for; None when something else is (a URI, an e-mail address)."""
    from cryptography import x509

    try:
        hosts = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(), 0
    names = frozenset(hosts.get_values_for_type(x509.DNSName))
    addresses = len(hosts.get_values_for_type(x509.IPAddress))
    return (names, addresses) if all(isinstance(host, x509.DNSName | x509.IPAddress) for host in hosts) else None
