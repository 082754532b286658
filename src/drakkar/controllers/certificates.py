"""Certificates of nodes: requests that a node may make for itself are approved and signed at once.

A request of signer ``kubernetes.io/kube-apiserver-client-kubelet`` comes from a bootstrap token, from an administrator
or from the node itself; one of ``kubernetes.io/kubelet-serving`` from the node itself. Everything else, other signers
too, is left to people. Upstream's controller approves the former and leaves the latter to others.

A bootstrap token makes new nodes only. Who holds one could become any node otherwise, and read what its pods may; so a
request for the name of a Node that exists is denied, and whoever replaces a machine deletes its Node first.

The authority is that of the API server as well, so a node gets no certificate by whose names it could pass for the
server or another node: the only name is its own, and no address is one of an API server. Loopback addresses are for
everybody: they lead to no other machine. Other addresses are taken on trust, nobody here knows a node's.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drakkar.api.clock import Clock
from drakkar.api.formats import dns_subdomain
from drakkar.api.kinds import Kind
from drakkar.api.meta import Object
from drakkar.api.objects import condition_is, name_of
from drakkar.api.tree import child, children, text, texts
from drakkar.client.cache import Cache, Caches
from drakkar.client.clock import timestamp
from drakkar.client.endpoints import ENDPOINTSLICE
from drakkar.client.queue import KeyQueue
from drakkar.client.writes import Patch, Write

if TYPE_CHECKING:
    from cryptography import x509

CSR = Kind("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", False)
CLIENT_SIGNER, SERVING_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"
_NODE, _NODES = "system:node:", "system:nodes"
_BOOTSTRAPPERS, _MASTERS = "system:bootstrappers", "system:masters"
_USAGES = {
    CLIENT_SIGNER: {"digital signature", "key encipherment", "client auth"},
    SERVING_SIGNER: {"digital signature", "key encipherment", "server auth"},
}

#: First labels of the names under which clients look for the API server.
_OF_THE_SERVER = {"kubernetes", "localhost"}

#: Makes a certificate (PEM) from a request (PEM); ``server``: for a server, else for a client.
Sign = Callable[[bytes, bool], bytes]
#: Whether there is a Node of this name, as the API server knows it just now.
IsThere = Callable[[str], Awaitable[bool]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class _Asked:
    user: str
    organizations: list[str]
    names: frozenset[str]
    addresses: frozenset[Address]


class Certificates:
    """Signs with ``sign``, which holds the authority's key; ``hosts`` are names and addresses of the API server."""

    name = "certificates"

    def __init__(self, clock: Clock, sign: Sign, is_there: IsThere, hosts: Iterable[str] = ()):
        self._clock = clock
        self._sign = sign
        self._is_there = is_there
        self._hosts = frozenset(hosts)

    def setup(self, caches: Caches, queue: KeyQueue) -> None:
        """Watch requests."""
        self._requests: Cache = caches.of(CSR)
        # Other servers on the same store have certificates with addresses of their own.
        self._servers: Cache = caches.of(
            ENDPOINTSLICE, namespace="default", label_selector="kubernetes.io/service-name=kubernetes"
        )
        self._requests.subscribe(lambda _, __, new: queue.add(name_of(new)))

    async def reconcile(self, key: str) -> Sequence[Write]:
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
            return await self._judged(request)
        pem = self._sign(base64.b64decode(text(request, "spec", "request")), signer == SERVING_SIGNER)
        body = {"status": {"certificate": base64.b64encode(pem).decode()}}
        return [Patch(CSR, "", key, body, subresource="status")]

    async def _judged(self, request: Object) -> list[Write]:
        if not allowed(request, self._of_servers()):
            return []
        node = taken_by_token(request)
        if node and await self._is_there(node):
            said = (
                f"node {node} exists, and a bootstrap token makes new nodes only: if its machine is to be replaced, "
                f"`kubectl delete node {node}` first; or start the agent with an administrator's kubeconfig"
            )
            return [self._verdict(request, "Denied", "NodeExists", said)]
        return [self._verdict(request, "Approved", "AutoApproved", "a node asked for a certificate of its own")]

    def _of_servers(self) -> set[str]:
        """Names and addresses of all API servers that are known."""
        found = set(self._hosts)
        for published in self._servers.list():
            for endpoint in children(published, "endpoints"):
                found.update(texts(endpoint, "addresses"))
        return found

    def _verdict(self, request: Object, kind: str, reason: str, message: str) -> Patch:
        stamp = timestamp(self._clock.time())
        entry = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastUpdateTime": stamp,
            "lastTransitionTime": stamp,
        }
        conditions = [*child(request, "status").get("conditions", []), entry]
        version = request["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}
        return Patch(CSR, "", name_of(request), body, subresource="approval")


def allowed(request: Object, servers: Iterable[str] = ()) -> bool:
    """Whether the requester may have this certificate without anybody looking at it.

    ``servers`` are names and addresses by which API servers are known.
    """
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
        some = bool(asked.names or asked.addresses)
        return itself and own and some and not _passes_for(asked, servers) and "server auth" in texts(spec, "usages")
    if asked.names or asked.addresses or "client auth" not in texts(spec, "usages"):
        return False
    return itself or _BOOTSTRAPPERS in groups or _MASTERS in groups


def taken_by_token(request: Object) -> str:
    """The node as which the holder of a bootstrap token wants to act by an `allowed` request; empty for others."""
    spec = child(request, "spec")
    asked, groups = _asked(text(spec, "request")), texts(spec, "groups")
    if asked is None or asked.user == text(spec, "username") or _BOOTSTRAPPERS not in groups or _MASTERS in groups:
        return ""
    return asked.user.removeprefix(_NODE)


def _passes_for(asked: _Asked, servers: Iterable[str]) -> bool:
    """Whether clients would take the holder of such a certificate for one of the servers."""
    known: set[Address] = set()
    for host in servers:
        try:
            known.add(_plain(ipaddress.ip_address(host)))
        except ValueError:
            if host.lower() in {name.lower() for name in asked.names}:
                return True
    addresses = [_plain(address) for address in asked.addresses]
    return any(each.is_unspecified or (each in known and not each.is_loopback) for each in addresses)


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, else the address."""
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address


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


def _hosts(request: x509.CertificateSigningRequest) -> tuple[frozenset[str], frozenset[Address]] | None:
    """The names and addresses that are asked for; None when something else is (a URI, an e-mail address)."""
    from cryptography import x509

    try:
        hosts = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(), frozenset()
    names, addresses = set[str](), set[Address]()
    for host in hosts:
        if isinstance(host, x509.DNSName):
            names.add(host.value)
        elif isinstance(host, x509.IPAddress) and isinstance(host.value, Address):
            addresses.add(host.value)
        else:
            return None
    return frozenset(names), frozenset(addresses)
