"""Missing rights: named with the rule to add, again only now and then, and until they are there."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from drakkar.api.errors import ApiError
from drakkar.api.kinds import LEASE, POD, RESOURCECLAIM
from drakkar.client import Client, MemoryTransport
from drakkar.client.access import FORGET, REMIND, Access, Rights, missing_right
from tests.unit.client.fakeserver import FakeServer, failure
from tests.unit.client.test_client import Instant

BINDING = (
    'pods "a" is forbidden: User "system:serviceaccount:x:y" cannot create resource "pods/binding" '
    'in API group "" in the namespace "default"'
)
#: 422, of the status of a claim.
CLAIM = (
    'ResourceClaim.resource.k8s.io "c" is invalid: status: Forbidden: changing this requires permission: '
    'User "u" cannot patch resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope'
)
LEASES = (
    'leases.coordination.k8s.io "l" is forbidden: User "u" cannot get resource "leases" '
    'in API group "coordination.k8s.io" in the namespace "kube-system"'
)


def error(code: int, message: str) -> ApiError:
    return ApiError({"code": code, "message": message})


def test_only_missing_rights_are_taken_for_such() -> None:
    assert missing_right(error(403, BINDING)) == Access(
        "create", "", "pods/binding", "default", "system:serviceaccount:x:y", "a"
    )
    assert missing_right(error(422, CLAIM)) == Access("patch", "resource.k8s.io", "resourceclaims/binding", user="u")
    assert missing_right(error(403, 'pods "a" is forbidden: exceeded quota: q, requested: pods=1')) is None
    assert missing_right(error(500, BINDING)) is None


def test_leases_of_all_namespaces_are_a_matter_of_a_cluster_role() -> None:
    rights, everywhere = (
        Rights(Instant(), "mine"),
        LEASES.replace('in the namespace "kube-system"', "at the cluster scope"),
    )
    for said, role in ((LEASES, "the Role mine in namespace kube-system"), (everywhere, "the ClusterRole mine")):
        right = missing_right(error(403, said))
        assert right is not None
        assert f"{role} needs the rule" in rights.describe(right)


def test_the_guards_rights_stand_in_a_role_with_the_name_of_its_service() -> None:
    for verb, resource, group in (("patch", "endpointslices", "discovery.k8s.io"), ("get", "services", "")):
        said = (
            f'{resource} "drakkar-guard" is forbidden: User "system:serviceaccount:x:y" '
            f'cannot {verb} resource "{resource}" in API group "{group}" in the namespace "x"'
        )
        right = missing_right(error(403, said))
        assert right is not None
        assert "the Role drakkar-guard in namespace x needs the rule" in Rights(Instant()).describe(right)
        # Commands end with a refusal, parts of a cluster try again.
        assert Rights(Instant()).describe(right).endswith("; tried again until it is there")
        assert "again" not in Rights(Instant(), lasting=False).describe(right)


def test_a_right_to_the_finalizers_of_an_owner_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """kube-apiserver says neither whose they are nor who lacks it."""
    said = (
        'resourceclaims.resource.k8s.io "c" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers '
        "to a resource you can't set finalizers on: , <nil>"
    )

    async def scenario() -> None:
        server = FakeServer()
        client = Client(MemoryTransport(server.handle), clock=Instant(), role="drakkar-scheduler")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
        metadata = {"name": "c", "namespace": "default"}
        for references in ([], [owner], [owner, {**owner, "blockOwnerDeletion": True}]):
            server.refuse = [failure(403, "Forbidden", said)]
            with contextlib.suppress(ApiError):
                await client.create(RESOURCECLAIM, {"metadata": {**metadata, "ownerReferences": references}})
            assert bool(client.rights) == (len(references) == 2)
        assert [right.resource for right in client.rights.missing()] == ["pods/finalizers"]

    with caplog.at_level(logging.INFO, logger="drakkar.client.access"):
        asyncio.run(scenario())
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        "not allowed to update pods/finalizers: the ClusterRole drakkar-scheduler needs the rule "
        '{apiGroups: [""], resources: ["pods/finalizers"], verbs: ["update"]} for the user of this component'
    )


def test_a_right_is_named_with_its_rule_until_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server, clock = FakeServer(), Instant()
        client = Client(MemoryTransport(server.handle), clock=clock, role="drakkar-scheduler")
        server.put(POD, {"metadata": {"name": "a", "namespace": "default"}, "spec": {}})
        binding = {"metadata": {"name": "a", "namespace": "default"}, "target": {"name": "n"}}

        async def bind(*refusals: str) -> None:
            server.refuse = [failure(403, "Forbidden", text) for text in refusals]
            with contextlib.suppress(ApiError):
                await client.create(POD, binding, subresource="binding")

        with caplog.at_level(logging.INFO, logger="drakkar.client.access"):
            for _ in range(3):
                await bind(BINDING)
            (said,) = [record.getMessage() for record in caplog.records]
            assert "not allowed to create pods/binding in namespace default" in said
            # In the chart, roles have the names of their accounts.
            assert "the ClusterRole y needs the rule" in said
            assert '{apiGroups: [""], resources: ["pods/binding"], verbs: ["create"]}' in said
            assert client.rights.text() == said
            assert 'drakkar_missing_rights{verb="create",group="",resource="pods/binding"} 1' in (
                client.rights.metrics_text()
            )
            # Another request that goes well says nothing about this right.
            await client.get(POD, "a", "default")
            assert client.rights
            clock.now += REMIND
            await bind(BINDING)
            assert [record.getMessage() for record in caplog.records] == [said, said]
            await bind()
            assert caplog.records[-1].getMessage() == "allowed now: create pods/binding in namespace default"
        assert client.rights.text() == ""
        # What is not asked any more is not known to be missing.
        await bind(BINDING)
        clock.now += FORGET + 1
        assert client.rights.missing() == []

    asyncio.run(scenario())


def test_the_lease_of_replicas_is_a_matter_of_a_role(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = FakeServer()
        client = Client(MemoryTransport(server.handle), role="drakkar-controllers")
        server.refuse = [failure(403, "Forbidden", LEASES)]
        with pytest.raises(ApiError):
            await client.get(LEASE, "l", "kube-system")
        assert "the Role drakkar-controllers in namespace kube-system needs" in client.rights.text()

    asyncio.run(scenario())


def test_refused_credentials_are_told_once_and_their_return(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = FakeServer()
        server.put(POD, {"metadata": {"name": "a", "namespace": "default"}})
        client = Client(MemoryTransport(server.handle))
        for _ in range(2):
            server.refuse = [failure(401, "Unauthorized", "Unauthorized")]
            with pytest.raises(ApiError):
                await client.get(POD, "a", "default")
        assert client.rights.text() == "Unauthorized"
        await client.get(POD, "a", "default")
        assert client.rights.text() == ""

    with caplog.at_level(logging.INFO, logger="drakkar.client.access"):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "Unauthorized",
        "the server accepts our credentials again",
    ]
