"""Requests for certificates: which are approved by themselves, and that what is signed is what was asked for."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from drakkar.api.meta import Object
from drakkar.apiserver import ApiServer, open_pki
from drakkar.client import Caches, Client, MemoryTransport, Runner
from drakkar.client.clock import SystemClock
from drakkar.client.endpoints import ENDPOINTSLICE
from drakkar.controllers.certificates import (
    CLIENT_SIGNER,
    CSR,
    SERVING_SIGNER,
    Certificates,
    allowed,
    taken_by_token,
)
from drakkar.store import MemoryBackend
from tests.support.eventually import eventually, memory_plane

NODE = "system:node:n1"


def request(name: str = NODE, organizations: Sequence[str] = ("system:nodes",), *names: x509.GeneralName) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def csr(pem: bytes, signer: str, user: str, groups: Sequence[str], usages: Sequence[str]) -> Object:
    spec = {"request": base64.b64encode(pem).decode(), "signerName": signer, "usages": [*usages]}
    return {"metadata": {"name": "c"}, "spec": {**spec, "username": user, "groups": [*groups]}}


async def nowhere(node: str) -> bool:
    """No node is there yet."""
    return False


BOOT = ("system:bootstrap:abc", ("system:bootstrappers",))
ITSELF = (NODE, ("system:nodes",))
ADMIN = ("admin", ("system:masters",))
USER = ("mallory", ("developers",))
CLIENT, SERVER = ("digital signature", "client auth"), ("digital signature", "server auth")
API = "kubernetes.default.svc"
PASSING = f"system:node:{API}"
PASSING_ITSELF = (PASSING, ("system:nodes",))
ADDRESS = x509.IPAddress(IPv4Address("10.0.0.1"))
HOST, MAIL = x509.DNSName("n1"), x509.RFC822Name("a@example.com")


@pytest.mark.parametrize(
    ("pem", "signer", "who", "usages", "expected"),
    [
        (request(), CLIENT_SIGNER, BOOT, CLIENT, True),
        (request(), CLIENT_SIGNER, ITSELF, CLIENT, True),
        (request(), CLIENT_SIGNER, ADMIN, CLIENT, True),
        (request(), CLIENT_SIGNER, USER, CLIENT, False),
        (request(), CLIENT_SIGNER, ("system:node:n2", ("system:nodes",)), CLIENT, False),
        (request(), CLIENT_SIGNER, (NODE, ()), CLIENT, False),
        (request("system:node:"), CLIENT_SIGNER, BOOT, CLIENT, False),
        (request("kube-apiserver-kubelet-client"), CLIENT_SIGNER, BOOT, CLIENT, False),
        (request(NODE, ("system:nodes", "system:masters")), CLIENT_SIGNER, BOOT, CLIENT, False),
        (request(NODE, ()), CLIENT_SIGNER, BOOT, CLIENT, False),
        (request(NODE, ("system:nodes",), HOST), CLIENT_SIGNER, BOOT, CLIENT, False),
        (request(), CLIENT_SIGNER, BOOT, (*CLIENT, "server auth"), False),
        (request(), CLIENT_SIGNER, BOOT, ("digital signature",), False),
        (request(NODE, ("system:nodes",), HOST), SERVING_SIGNER, ITSELF, SERVER, True),
        (request(NODE, ("system:nodes",), HOST), SERVING_SIGNER, BOOT, SERVER, False),
        (request(NODE, ("system:nodes",), HOST), SERVING_SIGNER, ADMIN, SERVER, False),
        (request(NODE, ("system:nodes",), HOST, MAIL), SERVING_SIGNER, ITSELF, SERVER, False),
        (request(), SERVING_SIGNER, ITSELF, SERVER, False),
        (request(NODE, ("system:nodes",), HOST, ADDRESS), SERVING_SIGNER, ITSELF, SERVER, True),
        # Names by which a node could pass for another one, or for the API server.
        (request(NODE, ("system:nodes",), HOST, x509.DNSName("n2")), SERVING_SIGNER, ITSELF, SERVER, False),
        (request(NODE, ("system:nodes",), x509.DNSName("*.n1")), SERVING_SIGNER, ITSELF, SERVER, False),
        (request(PASSING, ("system:nodes",), x509.DNSName(API)), SERVING_SIGNER, PASSING_ITSELF, SERVER, False),
        (request("system:node:../n1"), CLIENT_SIGNER, BOOT, CLIENT, False),
        (b"no request", CLIENT_SIGNER, BOOT, CLIENT, False),
    ],
)
def test_which_requests_are_approved(
    pem: bytes, signer: str, who: tuple[str, Sequence[str]], usages: Sequence[str], expected: bool
) -> None:
    assert allowed(csr(pem, signer, who[0], who[1], usages)) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (x509.IPAddress(ip_address("10.0.0.9")), True),
        (x509.IPAddress(ip_address("10.0.0.1")), False),
        (x509.IPAddress(ip_address("::ffff:10.0.0.1")), False),
        (x509.IPAddress(ip_address("0.0.0.0")), False),
        # On one machine the server and its nodes share these.
        (x509.IPAddress(ip_address("127.0.0.1")), True),
        (x509.IPAddress(ip_address("::1")), True),
        (x509.DNSName("N1"), False),
        (x509.DNSName("n1"), True),
    ],
    ids=str,
)
def test_no_node_passes_for_an_api_server(host: x509.GeneralName, expected: bool) -> None:
    # A node may have the name that a server has.
    assert not allowed(csr(request(NODE, ("system:nodes",), HOST), SERVING_SIGNER, *ITSELF, SERVER), ("N1",))
    servers = ("10.0.0.1", "127.0.0.1", "::1", "kubernetes", "api.example.com")
    asked = csr(request(NODE, ("system:nodes",), host), SERVING_SIGNER, *ITSELF, SERVER)
    assert allowed(asked, servers) is expected


def test_the_address_of_any_server_on_the_store_is_left_to_people(tmp_path: Path) -> None:
    async def run() -> None:
        pki = open_pki(tmp_path, ("10.0.0.1",))
        clock = SystemClock()
        server = ApiServer(MemoryBackend(), clock=clock)
        await server.start()
        admin = Client(MemoryTransport(server.handle, server.token("admin", "system:masters")), clock=clock)
        node = Client(MemoryTransport(server.handle, server.token(NODE, "system:nodes")), clock=clock)
        published = {
            "apiVersion": ENDPOINTSLICE.api_version,
            "kind": ENDPOINTSLICE.kind,
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.2"]}],
        }
        await admin.create(ENDPOINTSLICE, published, "default")
        caches = Caches(admin)
        judge = Certificates(clock, pki.sign, nowhere, pki.hosts())
        task = asyncio.create_task(Runner(admin, caches, judge, clock).run())
        for address in ("10.0.0.1", "10.0.0.2", "10.96.0.1", "10.0.0.3"):
            pem = request(NODE, ("system:nodes",), x509.IPAddress(ip_address(address)))
            kind = {"apiVersion": CSR.api_version, "kind": CSR.kind, "metadata": {"name": address}}
            await node.create(CSR, {**kind, "spec": csr(pem, SERVING_SIGNER, *ITSELF, SERVER)["spec"]})
        # The last one is signed, so the others have been looked at.
        await eventually(lambda: admin.get(CSR, "10.0.0.3"), lambda got: got["status"].get("certificate"))
        for address in ("10.0.0.1", "10.0.0.2", "10.96.0.1"):
            assert not (await admin.get(CSR, address))["status"].get("conditions")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.stop()
        await node.close()
        await admin.close()
        await server.close()

    asyncio.run(run())


def test_what_is_signed_is_what_was_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        pki = open_pki(tmp_path)
        async with memory_plane() as admin:
            transport: Any = admin.transport
            assert isinstance(transport, MemoryTransport)
            caches = Caches(admin)
            clock = SystemClock()
            task = asyncio.create_task(Runner(admin, caches, Certificates(clock, pki.sign, nowhere), clock).run())

            async def ask(client: Client, pem: bytes, signer: str, usages: Sequence[str]) -> Object:
                body = csr(pem, signer, "somebody else", ("system:masters",), usages)
                kind = {"apiVersion": CSR.api_version, "kind": CSR.kind, "metadata": {"generateName": "c-"}}
                return await client.create(CSR, {**kind, "spec": body["spec"]})

            made = await ask(admin, request(), CLIENT_SIGNER, CLIENT)
            # Who asks is told by the server, whatever the request says.
            assert made["spec"]["username"] == "admin"
            signed = await eventually(
                lambda: admin.get(CSR, made["metadata"]["name"]), lambda got: got["status"].get("certificate")
            )
            certificate = x509.load_pem_x509_certificate(base64.b64decode(signed["status"]["certificate"]))
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(pki.ca_certificate))
            (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            assert name.value == NODE
            purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
            left = await ask(admin, request("kube-apiserver-kubelet-client"), CLIENT_SIGNER, CLIENT)
            await asyncio.sleep(0.1)
            assert not (await admin.get(CSR, left["metadata"]["name"]))["status"].get("conditions")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await caches.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        (BOOT, "n1"),
        (("system:bootstrap:abc", ("system:bootstrappers", "system:bootstrappers:site")), "n1"),
        # The node itself renews what it has, and an administrator may do everything.
        (ITSELF, ""),
        (ADMIN, ""),
        (("admin", ("system:bootstrappers", "system:masters")), ""),
    ],
)
def test_who_becomes_a_node_by_a_token(who: tuple[str, Sequence[str]], expected: str) -> None:
    assert taken_by_token(csr(request(), CLIENT_SIGNER, *who, CLIENT)) == expected


def test_a_token_makes_new_nodes_only(tmp_path: Path) -> None:
    async def run() -> None:
        pki = open_pki(tmp_path)
        clock = SystemClock()
        server = ApiServer(MemoryBackend(), clock=clock)
        await server.start()

        def client(user: str, *groups: str) -> Client:
            return Client(MemoryTransport(server.handle, server.token(user, *groups)), clock=clock)

        admin, boot, node = client("admin", "system:masters"), client(BOOT[0], *BOOT[1]), client(NODE, "system:nodes")
        there = {"n1"}

        async def is_there(name: str) -> bool:
            return name in there

        async def verdict(by: Client, who: str) -> Object:
            kind = {"apiVersion": CSR.api_version, "kind": CSR.kind, "metadata": {"generateName": "c-"}}
            spec = csr(request(f"system:node:{who}"), CLIENT_SIGNER, "", (), CLIENT)["spec"]
            name = (await by.create(CSR, {**kind, "spec": spec}))["metadata"]["name"]

            def decided(got: Object) -> bool:
                reasons = [entry["type"] for entry in got["status"].get("conditions", ())]
                return "Denied" in reasons or bool(got["status"].get("certificate"))

            return (await eventually(lambda: admin.get(CSR, name), decided))["status"]

        caches = Caches(admin)
        task = asyncio.create_task(Runner(admin, caches, Certificates(clock, pki.sign, is_there), clock).run())
        told = await verdict(boot, "n1")
        (entry,) = told["conditions"]
        assert (entry["type"], entry["reason"], "certificate" in told) == ("Denied", "NodeExists", False)
        assert "kubectl delete node n1" in entry["message"]
        for by, who in ((node, "n1"), (admin, "n1"), (boot, "n2")):
            assert (await verdict(by, who))["certificate"]
        there.clear()
        assert (await verdict(boot, "n1"))["certificate"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await caches.stop()
        for each in (admin, boot, node):
            await each.close()
        await server.close()

    asyncio.run(run())
